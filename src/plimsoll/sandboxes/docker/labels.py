"""Labels on every resource that Plimsoll creates on a daemon, formatted and parsed."""

from collections.abc import Mapping

from plimsoll.core.ids import Labels, Owner

__all__ = ["OWNER_LABEL", "RUN", "SHARED", "TICKET", "from_docker", "is_shared", "to_docker"]

RUN = "plimsoll.run"
TICKET = "plimsoll.ticket"
OWNER = "plimsoll.owner"
EXPIRES = "plimsoll.expires"
SHARED = "plimsoll.shared"
"""Set on resources that serve many runs, such as images: they outlive their owner until expiry."""
OWNER_LABEL = OWNER
"""Every resource with this label was created by Plimsoll."""


def to_docker(labels: Labels, *, shared: bool = False) -> dict[str, str]:
    """Labels in Docker's format."""
    owner = labels.owner
    raw = {
        RUN: labels.run,
        TICKET: labels.ticket,
        OWNER: f"{owner.host} {owner.pid} {owner.started}",
        EXPIRES: f"{labels.expires:.0f}",
    }
    # Always set: a container inherits the labels of its image that it does not set itself.
    return {**raw, SHARED: "yes" if shared else "no"}


def from_docker(raw: Mapping[str, str] | None) -> Labels | None:
    """The parsed labels; None if they are not Plimsoll's or invalid."""
    found = raw or {}
    try:
        host, pid, started = found[OWNER].split(" ", 2)
        expires = float(found[EXPIRES])
        return Labels(found[RUN], found[TICKET], Owner(host, int(pid), started), expires)
    except (KeyError, ValueError):
        return None


def is_shared(raw: Mapping[str, str] | None) -> bool:
    return (raw or {}).get(SHARED) == "yes"
