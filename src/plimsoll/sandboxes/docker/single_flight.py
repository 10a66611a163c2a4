"""One piece of work for all who want its result at the same time.

Work on an engine that one process of this host does for all: builds, the network of a run.

Processes on other hosts are not seen. What they do at the same time is done twice, and is right.
"""

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Generic, TypeVar

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import BuildError, SandboxError
from plimsoll.sandboxes.host.locks import process_lock
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.protocol import OnOutput, Stream

__all__ = ["HostLock", "HostLocks", "SingleFlight"]

_T = TypeVar("_T")
_MAX_REPLAY = 4 << 20
"""Bytes of output that those who come later still get."""


class _Call(Generic[_T]):
    """Work under way: who waits for it, and what it has said so far."""

    def __init__(self) -> None:
        self.task: asyncio.Task[_T] | None = None
        self.waiting = 0
        self._listeners: list[OnOutput] = []
        self._said: deque[tuple[Stream, bytes]] = deque()
        self._size = 0

    def say(self, stream: Stream, data: bytes) -> None:
        self._said.append((stream, data))
        self._size += len(data)
        while self._size > _MAX_REPLAY:
            self._size -= len(self._said.popleft()[1])
        for listener in self._listeners:
            listener(stream, data)

    def listen(self, listener: OnOutput) -> None:
        for stream, data in self._said:
            listener(stream, data)
        self._listeners.append(listener)

    def leave(self, listener: OnOutput | None) -> None:
        if listener is not None:
            self._listeners.remove(listener)


class SingleFlight(Generic[_T]):
    """Work by key. It goes on while anybody waits for it, whoever began it."""

    def __init__(self) -> None:
        self._flights: dict[str, _Call[_T]] = {}

    @property
    def keys(self) -> frozenset[str]:
        """What is being worked on."""
        return frozenset(self._flights)

    async def join(
        self,
        key: str,
        work: Callable[[OnOutput], Awaitable[_T]],
        on_output: OnOutput | None = None,
    ) -> _T:
        """Begin the work, or wait for the one that is under way. All get its output and result."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Call[_T]()
            flight.task = asyncio.ensure_future(_run(work, flight.say))
            flight.task.add_done_callback(lambda _: self._flights.pop(key, None))
        assert flight.task is not None
        if on_output is not None:
            flight.listen(on_output)
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task])
            return flight.task.result()
        finally:
            flight.waiting -= 1
            flight.leave(on_output)
            if not flight.waiting and not flight.task.done():
                # Whoever comes from now on begins anew.
                self._flights.pop(key, None)
                flight.task.cancel()
                await run_to_completion(asyncio.wait([flight.task]))


async def _run(work: Callable[[OnOutput], Awaitable[_T]], say: OnOutput) -> _T:
    return await work(say)


_WAITING_NOTICE = b"another process of this host is at it; waiting for that\n"


class HostLock:
    """One's turn at something. The file says why the one before failed, if that is so."""

    def __init__(self, file: Path | None = None, *, waited: bool = False) -> None:
        self._file = file
        self._waited = waited

    def check(self) -> None:
        """Raise what it failed of for another, while this one waited for just that.

        Otherwise each would fail of the same one after another, and the last ones of their time.
        """
        if self._waited and self._file is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if said := self._file.read_text("utf-8"):
                    raise BuildError(said)

    @contextlib.contextmanager
    def telling(self) -> Generator[None, None, None]:
        """Around the work: those who wait are told why it failed."""
        self._write("")
        try:
            yield
        except BuildError as error:
            self._write(str(error))
            raise

    def _write(self, text: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write_text(text, "utf-8")


class HostLocks:
    """Turns at what is done on one engine, by name."""

    def __init__(self, where: str, home: Path | None = None) -> None:
        self._where = where
        self._home = home

    @contextlib.asynccontextmanager
    async def take(self, name: str, say: OnOutput | None = None) -> AsyncGenerator[HostLock, None]:
        """Wait for one's turn. Where this host keeps no files of ours, everybody has it."""

        def waiting() -> None:
            if say is not None:
                say("stderr", _WAITING_NOTICE)

        async with contextlib.AsyncExitStack() as stack:
            turn = HostLock()
            digest = hashlib.sha256(f"{self._where} {name}".encode()).hexdigest()[:32]
            with contextlib.suppress(SandboxError, OSError):
                file = Home.open(self._home).locks / f"docker-{digest}"
                waited = await stack.enter_async_context(process_lock(file, waiting))
                turn = HostLock(file, waited=waited)
            yield turn
