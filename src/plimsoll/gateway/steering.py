"""What a standalone gateway is told of its policy: to hold requests, and which version serves."""

from typing import Annotated

import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.core.versions import Version, read_version
from plimsoll.gateway.forms import Refusal
from plimsoll.gateway.upstreams.gate import Gate

__all__ = ["policy_status", "steer"]

MOST = 10**15
"""Of a version's numbers: a trajectory has room for no more."""
VersionText = Annotated[str, msgspec.Meta(max_length=40)]


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    paused: bool
    version: VersionText | None = None


_WANTED = msgspec.json.Decoder(_Wanted)


async def steer(gate: Gate, body: bytes) -> None:
    """Does what the body says. Raises `Refusal` for what it cannot mean, and changes nothing."""
    try:
        wanted = _WANTED.decode(body)
        version = None if wanted.version is None else _version(wanted.version)
    except UNREADABLE as error:
        raise Refusal("bad_request", f"the body cannot be read: {error}") from None
    if not wanted.paused:
        gate.resume(version)
    elif version is None:
        await gate.pause()
    else:
        message = "a version is said when requests may pass again, with paused false"
        raise Refusal("bad_request", message, param="version")


def policy_status(gate: Gate) -> dict[str, object]:
    return {
        "paused": gate.paused,
        "version": str(gate.version),
        "model": gate.model,
        "in_flight": gate.in_flight,
        "held": gate.held,
    }


def _version(text: str) -> Version:
    version = read_version(text)
    if max(version.lineage, version.number) > MOST:
        raise ValueError(f"{text!r} is no version")
    return version
