"""What a session may use."""

from dataclasses import dataclass

__all__ = ["MOST_BODY_BYTES", "MOST_CONCURRENT", "Limits"]

MOST_BODY_BYTES = 1 << 30
MOST_CONCURRENT = 4096
"""What a person may ask for: more than that is a slip, or fills the memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where None stands there is no limit. Crossing turns, tokens or seconds is the ending
    `budget`; the others only refuse a request."""

    turns: int | None = None
    """Requests that are answered."""
    tokens: int | None = None
    """Of all prompts and answers, as the upstream counts them."""
    seconds: float | None = None
    concurrent: int = 16
    """Requests that wait for the policy at once."""
    body_bytes: int = 64 << 20
    """Of one request, after it is decompressed."""
    media_hosts: tuple[str, ...] = ()
    """Hosts that a request may name images and other media of: see `MediaHosts`."""
