"""The generator thread: requests arrive and weights change between any two tokens.

Nothing waits forever: an error in the thread fails the affected requests. If the thread itself
cannot continue, it fails all current and later requests.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from plimsoll.core.errors import PolicyError
from plimsoll.core.versions import Version
from plimsoll.training.models import is_out_of_memory
from plimsoll.training.policies.local.decoding_batch import DecodingBatch, Row, Tokens
from plimsoll.training.policies.local.sampling import row_seed

__all__ = ["Generator"]

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""The thread gives up after this many consecutive failed steps."""
GROWTH_STEPS = 256
"""Steps without an out-of-memory error before one more concurrent answer is tried."""
COUNTED_PROMPTS = 65536
"""Prompts of one version whose repetitions are counted."""


class Generator:
    """Generates with one decoding batch. Used from one event loop."""

    def __init__(
        self, batch: DecodingBatch, *, seed: int, updating: Literal["interrupt", "drain"]
    ) -> None:
        self.problem = ""
        """The reason why it no longer generates; empty while it does."""
        self._batch = batch
        self._seed = seed
        self._drains = updating == "drain"
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Row] = deque()
        self._updates: deque[Callable[[], None]] = deque()
        self._request_counts: OrderedDict[int, int] = OrderedDict()
        """The number of requests for each prompt at this version."""
        self._listeners: dict[Row, asyncio.Queue[Tokens | PolicyError]] = {}
        """The consumer of each row. Only the event loop uses it."""
        self._confirmations: set[Future[None]] = set()
        self._failures = 0
        self._max_rows = batch.max_rows
        """The limit of concurrent answers without memory pressure."""
        self._good_steps = 0
        """Steps since the last out-of-memory error or growth."""
        self._growth_steps = GROWTH_STEPS
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="plimsoll-generator", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread. Requests in flight fail."""
        self._inbox.put(self._stop)
        await asyncio.to_thread(self._thread.join)

    async def generate(self, row: Row) -> AsyncGenerator[Tokens]:
        """Yield the tokens of a row as they are generated. Closing it aborts the row."""
        events: asyncio.Queue[Tokens | PolicyError] = asyncio.Queue()
        self._listeners[row] = events
        try:
            if self.problem:
                raise PolicyError(self.problem)
            self._inbox.put(partial(self._waiting.append, row))
            while True:
                result = await events.get()
                if isinstance(result, PolicyError):
                    raise result
                yield result
                if result.finish is not None:
                    return
        finally:
            del self._listeners[row]
            if row.finish is None:
                self._inbox.put(partial(self._abort, row))

    async def publish(self, tensors: Mapping[str, Tensor] | None, version: Version) -> None:
        """Return once every token sampled from now on is of this version."""
        done: Future[None] = Future()
        self._confirmations.add(done)
        try:
            if self.problem:
                raise PolicyError(self.problem)
            self._inbox.put(
                partial(self._updates.append, partial(self._update, tensors, version, done))
            )
            await asyncio.wrap_future(done)
        finally:
            self._confirmations.discard(done)

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._turn()
            self._end("the policy was closed")
        except Exception as error:  # the thread's boundary: every request fails with the reason
            log.exception("the policy stopped generating")
            self._end(f"the policy stopped generating: {_first_line(error)}")

    def _turn(self) -> None:
        self._take_calls()
        if self._updates and not (self._drains and len(self._batch)):
            self._updates.popleft()()
        while self._waiting and len(self._batch) < self._batch.max_rows and not self._updates:
            self._admit(self._waiting.popleft())
        if len(self._batch):
            self._step()

    def _take_calls(self) -> None:
        """Execute the calls of the inbox; block if there is nothing else to do."""
        wait = not (self._updates or self._waiting or len(self._batch))
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get(block=wait)()
                wait = False

    def _admit(self, row: Row) -> None:
        if row.seed is None:
            version = self._batch.version.number
            key = hash(tuple(row.ids))
            turn = self._request_counts[key] = self._request_counts.get(key, -1) + 1
            self._request_counts.move_to_end(key)
            if len(self._request_counts) > COUNTED_PROMPTS:
                self._request_counts.popitem(last=False)
            row.seed = row_seed(self._seed, version, row.ids, turn)
        self._batch.join(row)

    def _step(self) -> None:
        try:
            rows = self._batch.step()
        except Exception as error:  # noqa: BLE001 - becomes the failure of the affected requests
            self._failed(error)
            return
        self._failures = 0
        self._grow()
        results: list[tuple[Row, Tokens | PolicyError]] = []
        for row in rows:
            if row.failure:
                results.append((row, PolicyError(row.failure)))
            elif row.streamed or row.finish is not None:
                results.append((row, row.take_new()))
        self._send(results)

    def _failed(self, error: Exception) -> None:
        if is_out_of_memory(error):
            self._make_room()
            return
        log.error("a step of the policy failed", exc_info=error)
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise error
        failure = PolicyError(f"the policy failed: {_first_line(error)}")
        rows = list(self._batch.at_work)
        for row in rows:
            self._batch.leave(row)
        self._batch.drop_cache()
        self._send([(row, failure) for row in rows])

    def _make_room(self) -> None:
        """Reduce the number of rows; if no finished row can be dropped, abort the newest."""
        batch, rows = self._batch, sorted(self._batch.rows, key=lambda row: row.used)
        if batch.max_rows > len(rows):
            batch.max_rows = max(1, len(rows))
            log.warning("out of memory: reducing to %d concurrent answers", batch.max_rows)
        elif len(rows) > 1:
            batch.max_rows = len(rows) - 1
            # Wait twice as long before the next try: each failed try costs an answer.
            self._growth_steps *= 2
            log.warning("out of memory: reducing to %d concurrent answers", batch.max_rows)
            self._fail_for_memory(rows[-1])
        else:
            # A single row does not fit; others may be shorter.
            batch.max_rows = self._max_rows
            log.warning("out of memory with a single answer of %d tokens", len(rows[-1].ids))
            self._fail_for_memory(rows[-1])
        self._good_steps = 0
        batch.drop_cache()

    def _fail_for_memory(self, row: Row) -> None:
        self._batch.leave(row)
        failure = "out of memory: the conversation is too long for this device"
        self._send([(row, PolicyError(failure))])

    def _grow(self) -> None:
        """Allow one more row after a while: the memory may be free again."""
        if self._batch.max_rows < self._max_rows:
            self._good_steps += 1
            if self._good_steps >= self._growth_steps:
                self._batch.max_rows += 1
                self._good_steps = 0

    def _abort(self, row: Row) -> None:
        if row in self._waiting:
            self._waiting.remove(row)
        else:
            self._batch.leave(row)

    def _update(
        self, tensors: Mapping[str, Tensor] | None, version: Version, done: Future[None]
    ) -> None:
        self._batch.set_weights(tensors, version)
        self._request_counts.clear()
        if done.set_running_or_notify_cancel():  # else the publication was cancelled
            done.set_result(None)

    def _stop(self) -> None:
        self._stopping = True

    def _send(self, results: list[tuple[Row, Tokens | PolicyError]]) -> None:
        if results:
            self._on_loop(partial(self._deliver, results))

    def _deliver(self, results: list[tuple[Row, Tokens | PolicyError]]) -> None:
        for row, result in results:
            if row in self._listeners:
                self._listeners[row].put_nowait(result)

    def _end(self, why: str) -> None:
        self.problem = why
        self._on_loop(self._fail_all)

    def _fail_all(self) -> None:
        for events in self._listeners.values():
            events.put_nowait(PolicyError(self.problem))
        for done in self._confirmations:
            if not done.done():
                done.set_exception(PolicyError(self.problem))

    def _on_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: no consumer is left
            self._loop.call_soon_threadsafe(call)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
