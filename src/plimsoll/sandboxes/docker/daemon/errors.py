"""Errors of the engine in our words.

SandboxUnavailable    the engine hangs, is not who it should be, or its disk is full
├── EngineGone        it cannot be reached or is gone, as while it restarts
└── Lost              somebody removed a network or a volume of ours
EngineError           the engine answered that it cannot: a status, and its own words
"""

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from plimsoll.core.errors import SandboxError, SandboxUnavailable

__all__ = [
    "DaemonError",
    "DaemonUnreachable",
    "ResourceRemoved",
    "connection_error",
    "full_disk_error",
    "is_full_disk",
    "response_error",
    "trimmed",
]

_LONGEST = 400


class DaemonUnreachable(SandboxUnavailable):
    """The engine cannot be reached. It may be back in a moment."""


class ResourceRemoved(SandboxUnavailable):
    """Networks or volumes of ours are not what they were: once forgotten, they are made anew."""

    def __init__(self, where: str, *names: str) -> None:
        super().__init__(
            f"somebody removed {', '.join(names)} from the Docker engine at {where} while the run "
            "that uses it was under way"
        )
        self.names: Sequence[str] = names


class DaemonError(SandboxError):
    """The engine refused a call. `status` is HTTP's: 404 not there, 409 in the way, 500 failed."""

    def __init__(self, message: str, status: int, said: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.said = said
        """The engine's own message, trimmed."""
        self.exit_code = exit_code
        """How a command ended that the engine ran in a build."""


class _Message(msgspec.Struct):
    message: str = ""


def trimmed(text: str) -> str:
    """An engine's message as one line of bounded length."""
    line = " ".join(text.split()).removeprefix("Error response from daemon: ")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def is_full_disk(text: str) -> bool:
    return "no space left on device" in text.lower() or "disk quota exceeded" in text.lower()


def response_error(where: str, status: int, body: bytes, doing: str) -> SandboxError:
    """The error for an answer of the engine at `where`: a status and a JSON message, or a text."""
    try:
        said = msgspec.json.decode(body, type=_Message).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = body.decode("utf-8", "replace")
    said = trimmed(said) or f"HTTP status {status}"
    if is_full_disk(said):
        return full_disk_error(where, said)
    return DaemonError(f"the Docker engine at {where} cannot {doing}: {said}", status, said)


def full_disk_error(where: str, said: str) -> SandboxUnavailable:
    """The error for a full disk, which is the engine's, wherever that is."""
    return SandboxUnavailable(
        f"the disk of the Docker engine at {where} is full; make room there (plimsoll clean "
        f"--expired, docker image prune, docker builder prune): {said}"
    )


def connection_error(
    where: str, error: BaseException, doing: str, seconds: float
) -> SandboxUnavailable:
    """The error for a call that got no answer."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return DaemonUnreachable(f"the Docker engine at {where} cannot be reached: no connection")
    if isinstance(error, asyncio.TimeoutError):
        return SandboxUnavailable(
            f"the Docker engine at {where} hangs: no answer within {seconds:g} s when asked "
            f"to {doing}"
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return SandboxUnavailable(
            f"the Docker engine at {where} is not who it should be: "
            f"{trimmed(str(error.certificate_error))}; is its ca.pem the right one?"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return DaemonUnreachable(
            f"the Docker engine at {where} cannot be reached: "
            f"{error.os_error.strerror or trimmed(str(error.os_error))}; is it running?"
        )
    why = trimmed(str(error)) or type(error).__name__
    return DaemonUnreachable(
        f"the Docker engine at {where} is gone or restarted when asked to {doing}: {why}"
    )
