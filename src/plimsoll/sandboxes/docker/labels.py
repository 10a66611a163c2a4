"""The labels that everything Plimsoll makes on an engine carries, and how they are read back."""

from collections.abc import Mapping

from plimsoll.core.ids import Labels, Owner

__all__ = ["OWNER_LABEL", "RUN", "SHARED", "TICKET", "from_docker", "is_shared", "to_docker"]

RUN = "plimsoll.run"
TICKET = "plimsoll.ticket"
OWNER = "plimsoll.owner"
EXPIRES = "plimsoll.expires"
SHARED = "plimsoll.shared"
"""On what serves many runs, such as images: it outlives its owner, until it expires."""
OWNER_LABEL = OWNER
"""Whatever carries this label was made by Plimsoll."""


def to_docker(labels: Labels, *, shared: bool = False) -> dict[str, str]:
    """Labels as the engine keeps them."""
    owner = labels.owner
    written = {
        RUN: labels.run,
        TICKET: labels.ticket,
        OWNER: f"{owner.host} {owner.pid} {owner.started}",
        EXPIRES: f"{labels.expires:.0f}",
    }
    # Said either way: a container has its image's labels, unless it has its own.
    return {**written, SHARED: "yes" if shared else "no"}


def from_docker(written: Mapping[str, str] | None) -> Labels | None:
    """What the labels say; None where they are not ours or make no sense."""
    found = written or {}
    try:
        host, pid, started = found[OWNER].split(" ", 2)
        expires = float(found[EXPIRES])
        return Labels(found[RUN], found[TICKET], Owner(host, int(pid), started), expires)
    except (KeyError, ValueError):
        return None


def is_shared(written: Mapping[str, str] | None) -> bool:
    return (written or {}).get(SHARED) == "yes"
