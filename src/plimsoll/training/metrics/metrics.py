"""Where the figures of a run go: its own journal always, sinks as long as they take them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.training.metrics.lines import StepMetrics, flat
from plimsoll.training.metrics.sink import Sink

__all__ = ["Metrics"]

_SECONDS = 60.0
"""For a sink to take a line. It may be a server on another continent."""
_log = logging.getLogger(__name__)


class Metrics:
    """Of one run. A sink that fails is said once, and left out from then on."""

    def __init__(self, path: Path, sinks: Sequence[Sink] = ()) -> None:
        self._path = path
        self._sinks = list(sinks)

    async def step(self, line: StepMetrics) -> None:
        """Keep a step. Raises where the run's own journal cannot be written."""
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise UsageError(
                f"cannot write {self._path}: {error.strerror}; free some space"
            ) from error
        await self._send(line.step, flat(line))

    async def heldout(self, step: int, reward: float | None) -> None:
        if reward is not None:
            await self._send(step, {"heldout/reward": reward})

    async def close(self) -> None:
        for sink in list(self._sinks):
            await self._try(sink, sink.close)

    async def _send(self, step: int, figures: Mapping[str, float]) -> None:
        for sink in list(self._sinks):
            await self._try(sink, lambda sink=sink: sink.write(step, figures))

    async def _try(self, sink: Sink, call: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await asyncio.to_thread(call)
        except Exception as error:  # noqa: BLE001 - whatever a sink's own code raises: it is left out
            self._sinks.remove(sink)
            said = str(error) or type(error).__name__
            _log.warning("%s takes no more figures: %s; metrics.jsonl has them", sink.name, said)
