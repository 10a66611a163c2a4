"""An environment that writes marker files: one per cleaned-up ticket, and one at its end.

An order's task is a command with its argument.
"""

import asyncio
import contextlib
import json
import os
import resource
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from plimsoll.core.endings import Ending
from plimsoll.core.errors import UsageError
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.messages import (
    EnvironmentOptions,
    Kind,
    Order,
    Result,
    SandboxReport,
)

__all__ = [
    "MarkingEnvironment",
    "marking",
    "raises_key_error",
    "raises_usage_error",
    "slow_to_make",
]

BODY = 200 << 10


class MarkingEnvironment:
    """Sleeps, waits for a file, blocks its loop or a thread, leaks, raises, or cleans up slowly."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._leak: list[bytes] = []
        self._alive = 0
        self._version = FIRST_VERSION
        self._reported = 0

    def mark(self, name: str, text: str = "") -> None:
        (self._folder / name).write_text(text)

    async def run(self, order: Order) -> Result:
        began = time.monotonic()
        command, _, argument = order.task.partition(" ")
        self._alive += 1
        try:
            figures = await self._do(command, argument)
        finally:
            self._alive -= 1
            if command != "body":
                self.mark(f"{order.ticket}.cleaned", str(self._version))
        seconds = time.monotonic() - began
        verdict = Graded(1.0, Ending.SUBMITTED)
        return Result(ticket=order.ticket, verdict=verdict, seconds=seconds, trajectory=figures)

    async def _do(self, command: str, argument: str) -> str:
        match command:
            case "sleep":
                await asyncio.sleep(float(argument))
            case "until":
                await _wait_for(self._folder / argument)
            case "block":
                time.sleep(float(argument))  # noqa: ASYNC251 - a blocked loop is the point
            case "thread":
                # The loop is free; asyncio waits for the thread after the worker has cleaned up.
                await asyncio.to_thread(time.sleep, float(argument))
            case "leak":
                self._leak.append(os.urandom(1 << 20) * int(argument))
            case "body":
                await _converse(int(argument))
            case "raise":
                raise RuntimeError(argument)
            case "starve":
                await _take_all_descriptors(float(argument))
            case "overfill":
                Path("/dev/full").write_text(argument)
            case "stubborn":
                await _clean_up_slowly(float(argument))
            case "probe":
                return json.dumps(await _probe(float(argument)))
            case _:
                raise AssertionError(command)
        return ""

    def set_version(self, version: Version) -> None:
        self._version = version

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        pass

    def expect(self, kinds: Sequence[Kind]) -> None:
        if kinds or (self._folder / "expects").exists():
            self.mark("expects", str(len(kinds)))

    def take_report(self) -> SandboxReport | None:
        """The content of the file `news`, and of the marker of its end."""
        file = self._folder / "news"
        reports = tuple(one.read_text() for one in (file, self._folder / "left") if one.exists())
        news, self._reported = reports[self._reported :], len(reports)
        return SandboxReport(warnings=news) if news else None

    def counts(self) -> dict[str, int]:
        return {"alive": self._alive}


async def _wait_for(file: Path) -> None:
    while not file.exists():  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.02)


async def _converse(turns: int) -> None:
    """A conversation whose history grows turn by turn and is sent in full each time."""
    history: list[bytes] = []
    for _ in range(turns):
        history.append(os.urandom(1 << 10) * (BODY >> 10))
        request = b"".join(history)
        await asyncio.sleep(0)
        del request


async def _take_all_descriptors(seconds: float) -> None:
    """Use up all file descriptors for a number of seconds."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        await asyncio.sleep(seconds)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def _clean_up_slowly(seconds: float) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(seconds)


async def _probe(seconds: float) -> dict[str, float]:
    """The lag of the loop, measured every 10 ms."""
    loop = asyncio.get_running_loop()
    late: list[float] = []
    end = loop.time() + seconds
    while loop.time() < end:
        due = loop.time() + 0.01
        await asyncio.sleep(0.01)
        late.append(max(0.0, loop.time() - due))
    late.sort()
    return {"p99": late[int(len(late) * 0.99)], "worst": late[-1]}


@contextlib.asynccontextmanager
async def marking(options: EnvironmentOptions) -> AsyncIterator[MarkingEnvironment]:
    environment = MarkingEnvironment(Path(options.directory))
    try:
        yield environment
    finally:
        environment.mark("left", "its environment was left")


@contextlib.asynccontextmanager
async def slow_to_make(options: EnvironmentOptions) -> AsyncIterator[MarkingEnvironment]:
    """An environment that is ready once the file `go` exists."""
    folder = Path(options.directory)
    environment = MarkingEnvironment(folder)
    environment.mark("begun")
    try:
        await _wait_for(folder / "go")
        environment.mark("made")
        yield environment
    finally:
        environment.mark("left")


@contextlib.asynccontextmanager
async def raises_usage_error(options: EnvironmentOptions) -> AsyncIterator[MarkingEnvironment]:
    raise UsageError("no sandboxes here: give the host user namespaces")
    yield


@contextlib.asynccontextmanager
async def raises_key_error(options: EnvironmentOptions) -> AsyncIterator[MarkingEnvironment]:
    raise KeyError("a fault of ours")
    yield
