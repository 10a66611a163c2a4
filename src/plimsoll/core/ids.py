"""Identities: owners and labels of sandboxes, and random short ids."""

import secrets
from dataclasses import dataclass

__all__ = ["Labels", "Owner", "short_id"]


def short_id() -> str:
    """Ten hexadecimal digits, unique enough for names on one host."""
    return secrets.token_hex(5)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process on a host. `started` distinguishes it from a later process with the same pid."""

    host: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a sandbox, by which a later process can recognize and reap it."""

    run: str
    ticket: str
    owner: Owner
    expires: float
    """The expiry of the sandbox, in seconds since the epoch."""
