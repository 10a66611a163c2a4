"""Single flight: the same work is done once, within this process and across processes of this host.

Processes on other hosts are not seen. Work that two hosts do at the same time is done twice, with
the same result.
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
"""Bytes of past output that a late caller receives."""


class _Call(Generic[_T]):
    """Work in flight: its waiters and its output so far."""

    def __init__(self) -> None:
        self.task: asyncio.Task[_T] | None = None
        self.waiting = 0
        self._listeners: list[OnOutput] = []
        self._output: deque[tuple[Stream, bytes]] = deque()
        self._size = 0

    def emit(self, stream: Stream, data: bytes) -> None:
        self._output.append((stream, data))
        self._size += len(data)
        while self._size > _MAX_REPLAY:
            self._size -= len(self._output.popleft()[1])
        for listener in self._listeners:
            listener(stream, data)

    def listen(self, listener: OnOutput) -> None:
        for stream, data in self._output:
            listener(stream, data)
        self._listeners.append(listener)

    def leave(self, listener: OnOutput | None) -> None:
        if listener is not None:
            self._listeners.remove(listener)


class SingleFlight(Generic[_T]):
    """Work by key. It continues while at least one caller waits for it."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call[_T]] = {}

    async def run(
        self,
        key: str,
        work: Callable[[OnOutput], Awaitable[_T]],
        on_output: OnOutput | None = None,
    ) -> _T:
        """Start the work, or join the call in flight. All callers get its output and result."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call[_T]()
            call.task = asyncio.ensure_future(_run(work, call.emit))
            call.task.add_done_callback(lambda _: self._calls.pop(key, None))
        assert call.task is not None
        if on_output is not None:
            call.listen(on_output)
        call.waiting += 1
        try:
            await asyncio.wait([call.task])
            return call.task.result()
        finally:
            call.waiting -= 1
            call.leave(on_output)
            if not call.waiting and not call.task.done():
                # Later callers start the work again.
                self._calls.pop(key, None)
                call.task.cancel()
                await run_to_completion(asyncio.wait([call.task]))


async def _run(work: Callable[[OnOutput], Awaitable[_T]], emit: OnOutput) -> _T:
    return await work(emit)


_WAITING_NOTICE = b"waiting for another process of this host that does the same\n"


class HostLock:
    """A held lock. Its file contains the error of the previous holder, if that one failed."""

    def __init__(self, file: Path | None = None, *, waited: bool = False) -> None:
        self._file = file
        self._waited = waited

    def check(self) -> None:
        """Raise the error of the holder that this process waited for.

        Without it all waiters would repeat the failure one by one, and the last would time out.
        """
        if self._waited and self._file is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if reason := self._file.read_text("utf-8"):
                    raise BuildError(reason)

    @contextlib.contextmanager
    def recording_failure(self) -> Generator[None, None, None]:
        """Write the error of the enclosed work to the file, for the waiting processes."""
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
    """Locks by name for work on one daemon, shared by the processes of this host."""

    def __init__(self, endpoint: str, home: Path | None = None) -> None:
        self._endpoint = endpoint
        self._home = home

    @contextlib.asynccontextmanager
    async def acquire(
        self, name: str, emit: OnOutput | None = None
    ) -> AsyncGenerator[HostLock, None]:
        """Wait for a lock. Without a writable home folder there is no locking."""

        def waiting() -> None:
            if emit is not None:
                emit("stderr", _WAITING_NOTICE)

        async with contextlib.AsyncExitStack() as stack:
            lock = HostLock()
            digest = hashlib.sha256(f"{self._endpoint} {name}".encode()).hexdigest()[:32]
            with contextlib.suppress(SandboxError, OSError):
                file = Home.open(self._home).locks / f"docker-{digest}"
                waited = await stack.enter_async_context(process_lock(file, waiting))
                lock = HostLock(file, waited=waited)
            yield lock
