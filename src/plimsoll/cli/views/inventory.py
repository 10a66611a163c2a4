"""Resources of the inventory as text and JSON, and the output of `plimsoll ps`."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
import msgspec
from rich.table import Table

from plimsoll.cli.terminal.console import console
from plimsoll.cli.views.text import NONE, count, plain
from plimsoll.config.file import Config
from plimsoll.core.ids import Owner
from plimsoll.runs.cleanup import Inventories, open_inventories
from plimsoll.sandboxes.host.owners import host_name, is_alive, is_here
from plimsoll.sandboxes.reaper import RESOURCE_KINDS, Resource, ResourceKind, select_removable

__all__ = ["as_object", "counted", "show_inventory", "shown_id", "shown_owner"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SHORT = 12


def _age(seconds: float) -> str:
    """A duration in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"


def shown_id(item: Resource) -> str:
    """The name of a resource, else its id; a digest is shortened."""
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


def counted(kinds: Iterable[ResourceKind]) -> str:
    """`3 sandboxes, 1 network`."""
    counts = Counter(kinds)
    nouns = {"sandbox": "sandboxes"}
    return ", ".join(
        f"{counts[k]:,} {k if counts[k] == 1 else nouns.get(k, f'{k}s')}"
        for k in RESOURCE_KINDS
        if counts[k]
    )


def as_object(backend: str, item: Resource, now: float) -> dict[str, Any]:
    """A resource for --json."""
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
            # Unknown for a process on another host.
            "alive": is_alive(owner) if is_here(owner) else None,
        },
        "expires": item.labels.expires,
        "shared": item.shared,
        "used_by": list(item.used_by),
    }


HEADS = ("run", "ticket", "backend", "kind", "id", "state", "age", "owner", "expires")


async def show_inventory(backend: str, config: Config, *, as_json: bool) -> None:
    """Query the backends and print their resources."""
    async with open_inventories(backend, config) as inventories:
        pass
    found = [
        (listed.inventory.name, item) for listed in inventories.listed for item in listed.items
    ]
    if as_json:
        items = [as_object(name, item, inventories.now) for name, item in found]
        click.echo(msgspec.json.encode({"items": items, "unreached": inventories.unreached}))
        return
    out = console(stderr=False)
    if own := sorted((one for one in found if not one[1].shared), key=_by_run):
        out.print(_table(own, inventories.now))
    for line in _closing(inventories):
        out.print(line, soft_wrap=True)


def _by_run(one: tuple[str, Resource]) -> tuple[object, ...]:
    name, item = one
    # Natural order: task.2 before task.10.
    ticket = [part.zfill(9) for part in re.split(r"(\d+)", item.labels.ticket)]
    return item.labels.run, RESOURCE_KINDS.index(item.kind), ticket, name, item.id


def _table(found: Sequence[tuple[str, Resource]], now: float) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for head in HEADS:
        table.add_column(head, overflow="fold")
    for backend, item in found:
        left = item.labels.expires - now
        table.add_row(
            plain(item.labels.run) or NONE,
            plain(item.labels.ticket) or NONE,
            backend,
            item.kind,
            shown_id(item),
            item.state or NONE,
            NONE if item.created is None else _age(now - item.created),
            shown_owner(item.labels.owner),
            f"in {_age(left)}" if left > 0 else "past",
        )
    return table


def _closing(inventories: Inventories) -> Iterator[str]:
    """The totals, shared resources, and unreachable backends."""
    own = [item for listed in inventories.listed for item in listed.items if not item.shared]
    if own:
        runs = len({item.labels.run for item in own} - {""})  # an incomplete resource has none
        yield f"{count(runs, 'run')} · {counted(item.kind for item in own)}"
    elif inventories.listed:
        yield f"no resources of runs on {' and '.join(inventories.backends)}"
    if removable := sum(
        len(select_removable(listed.items, inventories.now)) for listed in inventories.listed
    ):
        yield (
            f"{removable:,} of dead owners or expired: `plimsoll clean --expired` removes "
            f"{'it' if removable == 1 else 'them'}, and so does the next run"
        )
    for listed in inventories.listed:
        if shared := counted(item.kind for item in listed.items if item.shared):
            yield f"shared by runs on {listed.inventory.name}: {shared}"
    for name, why in inventories.unreached.items():
        yield plain(f"{name} was not reached: {why}")
