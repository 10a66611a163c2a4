"""Where the figures of a run go: its own journal always, sinks as long as they take them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.training.dedicated_thread import DedicatedThread
from plimsoll.training.metrics.sinks import Sink, failure_reason
from plimsoll.training.metrics.step_metrics import StepMetrics, flatten, repair_journal

__all__ = ["MetricsRecorder"]

_SECONDS = 60.0
"""For a sink to take a line. It may be a server on another continent."""
_log = logging.getLogger(__name__)


class MetricsRecorder:
    """Of one run, which goes on after step `begin`: a line for each step, in order.

    A sink that fails is said once, and left out from then on. Each has a thread of its own, which
    no end of a process waits for: one may hang for ever.
    """

    def __init__(self, path: Path, sinks: Sequence[Sink] = (), *, begin: int = 0) -> None:
        self._path = path
        self._sinks = {sink: DedicatedThread(sink.name) for sink in sinks}
        self._end = repair_journal(path, up_to=begin)
        """Of the lines of steps that are over."""

    async def note(self, line: StepMetrics) -> None:
        """Keep what is known of a step before it counts: a crash may leave it committed.

        `step` puts the whole of it in its place.
        """
        await asyncio.to_thread(self._put, line)

    async def step(self, line: StepMetrics) -> None:
        """Keep a step. Raises where the run's own journal cannot be written."""
        self._end += await asyncio.to_thread(self._put, line)
        await self._send(line.step, flatten(line))

    async def heldout(self, step: int, reward: float | None) -> None:
        if reward is not None:
            await self._send(step, {"heldout/reward": reward})

    async def close(self) -> None:
        for sink, thread in list(self._sinks.items()):
            await self._try(sink, sink.close)
            thread.close()

    def _put(self, line: StepMetrics) -> int:
        """Write a line after those that are over. How long it is."""
        data = msgspec.json.encode(line) + b"\n"
        try:
            with self._path.open("r+b") as file:
                file.seek(self._end)
                file.write(data)
                file.truncate()
        except OSError as error:
            raise UsageError(
                f"cannot write {self._path}: {error.strerror}; free some space"
            ) from error
        return len(data)

    async def _send(self, step: int, figures: Mapping[str, float]) -> None:
        for sink in list(self._sinks):
            await self._try(sink, lambda sink=sink: sink.write(step, figures))

    async def _try(self, sink: Sink, call: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._sinks[sink].do(call)
        except Exception as error:  # noqa: BLE001 - whatever a sink's own code raises: it is left out
            self._sinks.pop(sink).close()
            said = failure_reason(error, _SECONDS)
            _log.warning("%s takes no more figures: %s; metrics.jsonl has them", sink.name, said)
