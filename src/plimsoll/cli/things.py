"""How what Plimsoll has made is shown: whose it is, how old, how many of each kind."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from plimsoll.cli.render import plain
from plimsoll.core.ids import Owner
from plimsoll.sandboxes.inventory import KINDS, Item, Kind
from plimsoll.sandboxes.owners import host_name, is_alive, is_here

__all__ = ["NONE", "age", "as_object", "counted", "shown_id", "shown_owner"]

NONE = "–"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SHORT = 12


def age(seconds: float) -> str:
    """A span of time in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"


def shown_id(item: Item) -> str:
    """What a person would call it: its name, else its id, cut where it is a long digest."""
    if item.name:
        return plain(item.name)
    digest = item.id.removeprefix("sha256:")
    return digest[:_SHORT] if len(digest) == 64 else plain(item.id)


def shown_owner(owner: Owner) -> str:
    if not owner.pid:
        return NONE
    if not is_here(owner):
        return plain(f"pid {owner.pid} on {owner.host}")
    return plain(f"pid {owner.pid} on {host_name(owner)}{'' if is_alive(owner) else ', dead'}")


def counted(kinds: Iterable[Kind]) -> str:
    """`3 sandboxes, 1 network`."""
    counts = Counter(kinds)
    nouns = {"sandbox": "sandboxes"}
    return ", ".join(
        f"{counts[k]:,} {k if counts[k] == 1 else nouns.get(k, f'{k}s')}"
        for k in KINDS
        if counts[k]
    )


def as_object(backend: str, item: Item, now: float) -> dict[str, Any]:
    """An item for --json."""
    owner = item.labels.owner
    return {
        "backend": backend,
        "kind": item.kind,
        "id": item.id,
        "name": item.name or None,
        "run": item.labels.run,
        "ticket": item.labels.ticket,
        "state": item.state or None,
        "age_seconds": None if item.created is None else round(now - item.created, 1),
        "owner": {
            "host": owner.host,
            "pid": owner.pid,
            # Whether one on another host lives is not known here.
            "alive": is_alive(owner) if is_here(owner) else None,
        },
        "expires": item.labels.expires,
        "shared": item.shared,
        "used_by": list(item.used_by),
    }
