"""The host's side of an upload or a download, and the one result of its two sides."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import NoRoom, TransferError
from plimsoll.core.text import safe_name
from plimsoll.sandboxes import trees
from plimsoll.sandboxes.protocol import Transfer
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = [
    "HostSide",
    "SideResult",
    "combine_sides",
    "pack_from_host",
    "remove_on_failure",
    "run_host_side",
    "transfer_error",
    "unpack_to_host",
]

HostSide = Callable[[int], Mapping[str, Any]]
"""Does the host's side at its end of a pipe, which it closes; what it carried."""

_BUFFER = 1 << 16
_FULL_HERE = "the disk of this host is full, make room on it: "
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


@dataclass(frozen=True, slots=True)
class SideResult:
    """What one side of a transfer says of it."""

    error: str = ""
    files: int = 0
    bytes: int = 0
    skipped: tuple[str, ...] = ()

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "SideResult":
        error = str(said.get("error", "")) or ("it was killed" if "signal" in said else "")
        counted = int(said.get("files", 0)), int(said.get("bytes", 0))
        return cls(error, *counted, tuple(map(safe_name, said.get("skipped", ()))))


def pack_from_host(source: Path, ignored: Callable[[str], bool] | None = None) -> HostSide:
    """What packs a file or folder of the host into a pipe; it must be there."""
    if not source.exists():
        raise TransferError(f"{source} is not there, so it cannot be uploaded")

    def pack(descriptor: int) -> Mapping[str, Any]:
        with open(descriptor, "wb", buffering=_BUFFER) as out:
            trees.pack(str(source), out, ignored)
        return {}

    return pack


def unpack_to_host(target: Path, rules: trees.Rules) -> HostSide:
    """What unpacks from a pipe to a path of the host."""

    def unpack(descriptor: int) -> Mapping[str, Any]:
        with open(descriptor, "rb", buffering=_BUFFER) as stream:
            return trees.unpack(stream, str(target.absolute()), rules)

    return unpack


def run_host_side(here: HostSide, descriptor: int) -> "asyncio.Future[SideResult]":
    """Do the host's side in a thread. It ends by itself when the pipe does."""
    return asyncio.ensure_future(asyncio.to_thread(_outcome, here, descriptor))


def _outcome(here: HostSide, descriptor: int) -> SideResult:
    try:
        return SideResult.of(here(descriptor))
    except trees.TreeError as error:
        return SideResult(error=str(error))
    except OSError as error:
        return SideResult(error=f"{error.filename or 'the transfer'}: {error.strerror or error}")


@contextlib.asynccontextmanager
async def remove_on_failure(target: Path) -> AsyncGenerator[None]:
    """What a failed download left at a path where nothing was is removed."""
    new = not os.path.lexists(target)
    try:
        yield
    except BaseException:
        if new:
            await run_to_completion(asyncio.to_thread(remove_folder, target))
        raise


def transfer_error(why: str) -> TransferError:
    """The error for a transfer that could not be; what the system said stands last in `why`."""
    return NoRoom(why) if why.endswith(_NO_ROOM) else TransferError(why)


def combine_sides(what: str, theirs: SideResult, mine: SideResult) -> Transfer:
    """Make one result of what the two sides of a transfer said; the side that packs counts none."""
    complaints = [side.error for side in (theirs, mine) if side.error]
    if complaints:
        # The side that stopped first says why; at the other the pipe just broke.
        causes = [x for x in complaints if "Broken pipe" not in x and "broke off" not in x]
        cause = (causes or complaints)[0]
        here = cause == mine.error and cause.endswith(_NO_ROOM)
        raise transfer_error(f"{_FULL_HERE if here else ''}{what}: {cause}")
    return Transfer(
        files=theirs.files + mine.files,
        bytes=theirs.bytes + mine.bytes,
        skipped=(*theirs.skipped, *mine.skipped),
    )
