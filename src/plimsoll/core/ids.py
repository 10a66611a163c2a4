"""Names of things: who owns a sandbox, and short ids that sort by nothing."""

import secrets
from dataclasses import dataclass

__all__ = ["Labels", "Owner", "short_id"]


def short_id() -> str:
    """Ten hexadecimal digits, unique enough for names on one host."""
    return secrets.token_hex(5)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process on a host. `started` tells it from a later process with the same pid."""

    host: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Labels:
    """What every sandbox carries, so that whoever starts next can adopt or reap it."""

    run: str
    ticket: str
    owner: Owner
    expires: float
    """Seconds since the epoch after which nobody needs the sandbox any more."""
