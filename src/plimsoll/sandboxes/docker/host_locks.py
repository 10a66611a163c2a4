"""Locks for work on a Docker daemon, shared by the processes of this host.

Processes on other hosts are not seen. Work that two hosts do at the same time is done twice, with
the same result.
"""

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from plimsoll.core.errors import BuildError, SandboxError
from plimsoll.sandboxes.host.locks import process_lock
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.protocol import OnOutput

__all__ = ["HostLock", "HostLocks"]

_WAITING_NOTICE = b"waiting for another process of this host that builds the same image\n"


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
