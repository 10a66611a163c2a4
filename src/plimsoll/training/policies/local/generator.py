"""The thread that generates: requests come in and weights change between any two tokens.

Nothing waits for ever: whatever goes wrong in the thread ends the requests that it concerns with
an error, and if the thread itself cannot go on, all of them and every later one.
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
from plimsoll.training.policies.local.decoding_batch import DecodingBatch
from plimsoll.training.policies.local.rows import Row, Tokens
from plimsoll.training.policies.local.sampling import row_seed

__all__ = ["Generator"]

log = logging.getLogger(__name__)

FAILURES = 3
"""So many steps in a row that fail for no known reason, and the thread gives up."""
GOOD = 256
"""So many steps without a lack of memory, and one answer more is tried at once."""
REMEMBERED = 65536
"""Prompts of one version whose askings are counted."""


class Generator:
    """Generates with one batch. Entered and asked from one event loop."""

    def __init__(
        self, batch: DecodingBatch, *, seed: int, updating: Literal["interrupt", "drain"]
    ) -> None:
        self.problem = ""
        """Why it does not generate any more."""
        self._batch = batch
        self._seed = seed
        self._drains = updating == "drain"
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Row] = deque()
        self._updates: deque[Callable[[], None]] = deque()
        self._asked: OrderedDict[int, int] = OrderedDict()
        """How often each prompt was asked at this version."""
        self._listeners: dict[Row, asyncio.Queue[Tokens | PolicyError]] = {}
        """Who waits for which row. Only the event loop touches it."""
        self._confirmations: set[Future[None]] = set()
        self._failures = 0
        self._most = batch.most
        """Answers at once, where memory is no matter."""
        self._good = 0
        """Steps since memory ran out, or since one answer more was tried."""
        self._patience = GOOD
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="plimsoll-generator", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread; requests that are under way fail."""
        self._inbox.put(self._stop)
        await asyncio.to_thread(self._thread.join)

    async def generate(self, row: Row) -> AsyncGenerator[Tokens]:
        """The tokens of a row as they come. Closing it gives the row up."""
        heard: asyncio.Queue[Tokens | PolicyError] = asyncio.Queue()
        self._listeners[row] = heard
        try:
            if self.problem:
                raise PolicyError(self.problem)
            self._inbox.put(partial(self._waiting.append, row))
            while True:
                news = await heard.get()
                if isinstance(news, PolicyError):
                    raise news
                yield news
                if news.finish is not None:
                    return
        finally:
            del self._listeners[row]
            if row.finish is None:
                self._inbox.put(partial(self._give_up, row))

    async def publish(self, tensors: Mapping[str, Tensor] | None, version: Version) -> None:
        """Returns once all that is drawn from now on is of this version."""
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
        except Exception as error:  # the thread's boundary: every request ends, and says why
            log.exception("the policy cannot generate any more")
            self._end(f"the policy cannot generate any more: {_first_line(error)}")

    def _turn(self) -> None:
        self._hear()
        if self._updates and not (self._drains and len(self._batch)):
            self._updates.popleft()()
        while self._waiting and len(self._batch) < self._batch.most and not self._updates:
            self._admit(self._waiting.popleft())
        if len(self._batch):
            self._step()

    def _hear(self) -> None:
        """Takes what was asked for; waits for it where there is nothing else to do."""
        wait = not (self._updates or self._waiting or len(self._batch))
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get(block=wait)()
                wait = False

    def _admit(self, row: Row) -> None:
        if row.seed is None:
            version = self._batch.version.number
            key = hash(tuple(row.ids))
            turn = self._asked[key] = self._asked.get(key, -1) + 1
            self._asked.move_to_end(key)
            if len(self._asked) > REMEMBERED:
                self._asked.popitem(last=False)
            row.seed = row_seed(self._seed, version, row.ids, turn)
        self._batch.join(row)

    def _step(self) -> None:
        try:
            rows = self._batch.step()
        except Exception as error:  # noqa: BLE001 - the failure of the requests that it was for
            self._failed(error)
            return
        self._failures = 0
        self._grow()
        news: list[tuple[Row, Tokens | PolicyError]] = []
        for row in rows:
            if row.failure:
                news.append((row, PolicyError(row.failure)))
            elif row.told or row.finish is not None:
                news.append((row, row.news()))
        self._tell(news)

    def _failed(self, error: Exception) -> None:
        if is_out_of_memory(error):
            self._make_room()
            return
        log.error("a step of the policy failed", exc_info=error)
        self._failures += 1
        if self._failures >= FAILURES:
            raise error
        failure = PolicyError(f"the policy failed: {_first_line(error)}")
        rows = list(self._batch.at_work)
        for row in rows:
            self._batch.leave(row)
        self._batch.forget()
        self._tell([(row, failure) for row in rows])

    def _make_room(self) -> None:
        """Fewer rows at once; where no row is over and kept, the youngest is given up."""
        batch, rows = self._batch, sorted(self._batch.rows, key=lambda row: row.used)
        if batch.most > len(rows):
            batch.most = max(1, len(rows))
            log.warning("out of memory: %d answers at once for a while", batch.most)
        elif len(rows) > 1:
            batch.most = len(rows) - 1
            # Twice as long until it is tried again: each such try costs an answer.
            self._patience *= 2
            log.warning("out of memory: %d answers at once for a while", batch.most)
            self._lack_memory(rows[-1])
        else:
            # It does not fit by itself, which says nothing of others.
            batch.most = self._most
            log.warning("out of memory with an answer of %d tokens alone", len(rows[-1].ids))
            self._lack_memory(rows[-1])
        self._good = 0
        batch.forget()

    def _lack_memory(self, row: Row) -> None:
        self._batch.leave(row)
        failure = "out of memory: the conversation is too long for what this device has"
        self._tell([(row, PolicyError(failure))])

    def _grow(self) -> None:
        """What took the memory may be gone: a long conversation, or a step of the learner."""
        if self._batch.most < self._most:
            self._good += 1
            if self._good >= self._patience:
                self._batch.most += 1
                self._good = 0

    def _give_up(self, row: Row) -> None:
        if row in self._waiting:
            self._waiting.remove(row)
        else:
            self._batch.leave(row)

    def _update(
        self, tensors: Mapping[str, Tensor] | None, version: Version, done: Future[None]
    ) -> None:
        self._batch.renew(tensors, version)
        self._asked.clear()
        if done.set_running_or_notify_cancel():  # else whoever published has given up
            done.set_result(None)

    def _stop(self) -> None:
        self._stopping = True

    def _tell(self, news: list[tuple[Row, Tokens | PolicyError]]) -> None:
        if news:
            self._on_loop(partial(self._deliver, news))

    def _deliver(self, news: list[tuple[Row, Tokens | PolicyError]]) -> None:
        for row, what in news:
            if row in self._listeners:
                self._listeners[row].put_nowait(what)

    def _end(self, why: str) -> None:
        self.problem = why
        self._on_loop(self._fail_all)

    def _fail_all(self) -> None:
        for heard in self._listeners.values():
            heard.put_nowait(PolicyError(self.problem))
        for done in self._confirmations:
            if not done.done():
                done.set_exception(PolicyError(self.problem))

    def _on_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
