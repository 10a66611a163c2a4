"""Work on an engine that one process of this host does for all: builds, the network of a run.

Processes on other hosts are not seen. What they do at the same time is done twice, and is right.
"""

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from plimsoll.core.errors import BuildError, SandboxError
from plimsoll.sandboxes.local.home import Home
from plimsoll.sandboxes.locks import only_process
from plimsoll.sandboxes.protocol import OnOutput

__all__ = ["Turn", "Turns"]

_WAITING = b"another process of this host is at it; waiting for that\n"


class Turn:
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


class Turns:
    """Turns at what is done on one engine, by name."""

    def __init__(self, where: str, home: Path | None = None) -> None:
        self._where = where
        self._home = home

    @contextlib.asynccontextmanager
    async def take(self, name: str, say: OnOutput | None = None) -> AsyncGenerator[Turn, None]:
        """Wait for one's turn. Where this host keeps no files of ours, everybody has it."""

        def waiting() -> None:
            if say is not None:
                say("stderr", _WAITING)

        async with contextlib.AsyncExitStack() as stack:
            turn = Turn()
            digest = hashlib.sha256(f"{self._where} {name}".encode()).hexdigest()[:32]
            with contextlib.suppress(SandboxError, OSError):
                file = Home.open(self._home).locks / f"docker-{digest}"
                waited = await stack.enter_async_context(only_process(file, waiting))
                turn = Turn(file, waited=waited)
            yield turn
