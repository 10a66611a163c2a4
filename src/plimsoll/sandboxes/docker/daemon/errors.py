"""Errors of the Docker daemon as `SandboxError`.

SandboxUnavailable     the daemon hangs, has a wrong certificate, or its disk is full
├── DaemonUnreachable  the daemon does not accept or keep a connection, e.g. while it restarts
└── ResourceRemoved    a network or volume of the run was removed by someone else
DaemonError            the daemon refused a call: an HTTP status and a message
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
    "shorten",
]

_MAX_LENGTH = 400


class DaemonUnreachable(SandboxUnavailable):
    """The daemon cannot be reached; it may only be restarting."""


class ResourceRemoved(SandboxUnavailable):
    """Networks or volumes of the run were removed. Forget them, and they are created again."""

    def __init__(self, endpoint: str, *names: str) -> None:
        super().__init__(
            f"{', '.join(names)} was removed from the Docker daemon at {endpoint} while a run "
            "was using it"
        )
        self.names: Sequence[str] = names


class DaemonError(SandboxError):
    """The daemon refused a call. `status` is the HTTP status: 404 not found, 409 conflict, 500."""

    def __init__(
        self, message: str, status: int, reason: str, exit_code: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """The daemon's own message, shortened."""
        self.exit_code = exit_code
        """The exit code of a build step's command."""


class _Message(msgspec.Struct):
    message: str = ""


def shorten(text: str) -> str:
    """A daemon's message as one line of bounded length."""
    line = " ".join(text.split()).removeprefix("Error response from daemon: ")
    return line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]}…"


def is_full_disk(text: str) -> bool:
    return "no space left on device" in text.lower() or "disk quota exceeded" in text.lower()


def response_error(endpoint: str, status: int, body: bytes, action: str) -> SandboxError:
    """The error for an error response: its body is a JSON message or plain text."""
    try:
        message = msgspec.json.decode(body, type=_Message).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = body.decode("utf-8", "replace")
    reason = shorten(message) or f"HTTP status {status}"
    if is_full_disk(reason):
        return full_disk_error(endpoint, reason)
    return DaemonError(f"the Docker daemon at {endpoint} cannot {action}: {reason}", status, reason)


def full_disk_error(endpoint: str, reason: str) -> SandboxUnavailable:
    """The error for a full disk of the daemon's host."""
    return SandboxUnavailable(
        f"the disk of the Docker daemon at {endpoint} is full; free space there (plimsoll clean "
        f"--expired, docker image prune, docker builder prune): {reason}"
    )


def connection_error(
    endpoint: str, error: BaseException, action: str, seconds: float
) -> SandboxUnavailable:
    """The error for a call that got no response."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return DaemonUnreachable(
            f"the Docker daemon at {endpoint} cannot be reached: no connection"
        )
    if isinstance(error, asyncio.TimeoutError):
        return SandboxUnavailable(
            f"the Docker daemon at {endpoint} hangs: no response within {seconds:g} s when asked "
            f"to {action}"
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return SandboxUnavailable(
            f"the Docker daemon at {endpoint} has an untrusted certificate: "
            f"{shorten(str(error.certificate_error))}; check its ca.pem"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return DaemonUnreachable(
            f"the Docker daemon at {endpoint} cannot be reached: "
            f"{error.os_error.strerror or shorten(str(error.os_error))}; is it running?"
        )
    reason = shorten(str(error)) or type(error).__name__
    return DaemonUnreachable(
        f"the Docker daemon at {endpoint} closed the connection when asked to {action}: {reason}"
    )
