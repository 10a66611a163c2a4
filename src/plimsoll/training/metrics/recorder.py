"""Sends the figures of steps to the configured sinks."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from plimsoll.runs.files.steps import Step
from plimsoll.training.dedicated_thread import DedicatedThread
from plimsoll.training.metrics.sinks import Sink, failure_reason

__all__ = ["MetricsRecorder", "flatten"]

_SECONDS = 60.0
"""The time limit for a sink to take the figures of a step; it may be a remote server."""
_log = logging.getLogger(__name__)


class MetricsRecorder:
    """The sinks of one run.

    A failing sink is reported once and then dropped. Each sink has its own daemon thread, since it
    may hang forever.
    """

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = {sink: DedicatedThread(sink.name) for sink in sinks}

    async def step(self, step: Step) -> None:
        """Send the figures of a finished step."""
        await self._send(step.step, flatten(step))

    async def held_out(self, step: int, reward: float | None) -> None:
        if reward is not None:
            await self._send(step, {"heldout/reward": reward})

    async def close(self) -> None:
        for sink, thread in list(self._sinks.items()):
            await self._try(sink, sink.close)
            thread.close()

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
            _log.warning("%s is dropped: %s; steps.jsonl has the figures", sink.name, reason)


def flatten(line: msgspec.Struct) -> dict[str, float]:
    """The numbers of a line by name; those of nested tables as `table/name`."""
    return dict(_numbers("", cast("dict[str, object]", msgspec.to_builtins(line))))


def _numbers(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        match value:
            case bool():
                pass
            case int() | float():
                yield f"{prefix}{name}", float(value)
            case dict():
                yield from _numbers(f"{prefix}{name}/", cast("dict[str, object]", value))
            case _:
                pass
