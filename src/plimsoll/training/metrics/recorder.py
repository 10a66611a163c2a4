"""Records the figures of steps: in metrics.jsonl of the run directory, and in sinks."""

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
"""The time limit for a sink to take the figures of a step; it may be a remote server."""
_log = logging.getLogger(__name__)


class MetricsRecorder:
    """The metrics of one run, which continues after step `begin`: one line a step, in order.

    A failing sink is reported once and then dropped. Each sink has its own daemon thread, since it
    may hang for ever.
    """

    def __init__(self, path: Path, sinks: Sequence[Sink] = (), *, begin: int = 0) -> None:
        self._path = path
        self._sinks = {sink: DedicatedThread(sink.name) for sink in sinks}
        self._end = repair_journal(path, up_to=begin)
        """The size of the lines of finished steps, in bytes."""

    async def note(self, line: StepMetrics) -> None:
        """Write the figures of a step before its commit: a crash may leave it committed.

        `step` replaces the line with the complete one.
        """
        await asyncio.to_thread(self._write, line)

    async def step(self, line: StepMetrics) -> None:
        """Record a finished step. Raises `UsageError` if metrics.jsonl cannot be written."""
        self._end += await asyncio.to_thread(self._write, line)
        await self._send(line.step, flatten(line))

    async def heldout(self, step: int, reward: float | None) -> None:
        if reward is not None:
            await self._send(step, {"heldout/reward": reward})

    async def close(self) -> None:
        for sink, thread in list(self._sinks.items()):
            await self._try(sink, sink.close)
            thread.close()

    def _write(self, line: StepMetrics) -> int:
        """Write a line after those of finished steps. Returns its size."""
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
        except Exception as error:  # noqa: BLE001 - any error of a sink's own code: it is dropped
            self._sinks.pop(sink).close()
            reason = failure_reason(error, _SECONDS)
            _log.warning("%s is dropped: %s; metrics.jsonl has the figures", sink.name, reason)
