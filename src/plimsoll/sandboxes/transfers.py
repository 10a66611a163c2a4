"""Uploads and downloads: the host's side, and the combined result of both sides."""

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
"""Runs the host's side on a pipe descriptor, which it closes. Returns counts and skipped names."""

_BUFFER = 1 << 16
_HOST_DISK_FULL = "the disk of this host is full; free some space: "
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


@dataclass(frozen=True, slots=True)
class SideResult:
    """The report of one side of a transfer."""

    error: str = ""
    files: int = 0
    bytes: int = 0
    skipped: tuple[str, ...] = ()

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> "SideResult":
        error = str(report.get("error", "")) or ("it was killed" if "signal" in report else "")
        counts = int(report.get("files", 0)), int(report.get("bytes", 0))
        return cls(error, *counts, tuple(map(safe_name, report.get("skipped", ()))))


def pack_from_host(source: Path, ignored: Callable[[str], bool] | None = None) -> HostSide:
    """The side that packs a file or folder of the host into a pipe. The source must exist."""
    if not source.exists():
        raise TransferError(f"{source} does not exist, so it cannot be uploaded")

    def pack(descriptor: int) -> Mapping[str, Any]:
        with open(descriptor, "wb", buffering=_BUFFER) as out:
            trees.pack(str(source), out, ignored)
        return {}

    return pack


def unpack_to_host(target: Path, rules: trees.Rules) -> HostSide:
    """The side that unpacks a pipe to a path of the host."""

    def unpack(descriptor: int) -> Mapping[str, Any]:
        with open(descriptor, "rb", buffering=_BUFFER) as stream:
            return trees.unpack(stream, str(target.absolute()), rules)

    return unpack


def run_host_side(side: HostSide, descriptor: int) -> "asyncio.Future[SideResult]":
    """Run the host's side in a thread. It ends when the pipe is closed."""
    return asyncio.ensure_future(asyncio.to_thread(_outcome, side, descriptor))


def _outcome(side: HostSide, descriptor: int) -> SideResult:
    try:
        return SideResult.of(side(descriptor))
    except trees.TreeError as error:
        return SideResult(error=str(error))
    except OSError as error:
        return SideResult(error=f"{error.filename or 'the transfer'}: {error.strerror or error}")


@contextlib.asynccontextmanager
async def remove_on_failure(target: Path) -> AsyncGenerator[None]:
    """Remove the partial result of a failed download, unless the target existed before."""
    new = not os.path.lexists(target)
    try:
        yield
    except BaseException:
        if new:
            await run_to_completion(asyncio.to_thread(remove_folder, target))
        raise


def transfer_error(why: str) -> TransferError:
    """The error of a failed transfer. `why` ends with the text of the system error."""
    return NoRoom(why) if why.endswith(_NO_ROOM) else TransferError(why)


def combine_sides(what: str, sandbox: SideResult, host: SideResult) -> Transfer:
    """Combine the reports of both sides. The packing side reports no counts."""
    messages = [side.error for side in (sandbox, host) if side.error]
    if messages:
        # The side that stopped first has the cause; the other one only saw a broken pipe.
        causes = [x for x in messages if "Broken pipe" not in x and "broke off" not in x]
        cause = (causes or messages)[0]
        on_host = cause == host.error and cause.endswith(_NO_ROOM)
        raise transfer_error(f"{_HOST_DISK_FULL if on_host else ''}{what}: {cause}")
    return Transfer(
        files=sandbox.files + host.files,
        bytes=sandbox.bytes + host.bytes,
        skipped=(*sandbox.skipped, *host.skipped),
    )
