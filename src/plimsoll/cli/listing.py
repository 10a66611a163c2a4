"""What `plimsoll ps` prints: a line a thing, by run; then the totals."""

import re
from collections.abc import Iterator, Sequence

import click
import msgspec
from rich.table import Table

from plimsoll.cli.render import console, plain
from plimsoll.cli.things import NONE, age, as_object, counted, shown_id, shown_owner
from plimsoll.runs.config import Config
from plimsoll.runs.inventories import Stock, open_stock
from plimsoll.sandboxes.inventory import KINDS, Item
from plimsoll.sandboxes.reaper import doomed

__all__ = ["show"]

HEADS = ("run", "ticket", "backend", "kind", "id", "state", "age", "owner", "expires")


async def show(backend: str, config: Config, *, as_json: bool) -> None:
    """Ask the backends, and print what they have."""
    async with open_stock(backend, config) as stock:
        pass
    found = [(shelf.inventory.name, item) for shelf in stock.shelves for item in shelf.items]
    if as_json:
        items = [as_object(name, item, stock.now) for name, item in found]
        click.echo(msgspec.json.encode({"items": items, "unreached": stock.unreached}))
        return
    out = console(stderr=False)
    if own := sorted((one for one in found if not one[1].shared), key=_by_run):
        out.print(_table(own, stock.now))
    for line in _closing(stock):
        out.print(line, soft_wrap=True)


def _by_run(one: tuple[str, Item]) -> tuple[object, ...]:
    name, item = one
    # As people count: task.2 before task.10.
    ticket = [part.zfill(9) for part in re.split(r"(\d+)", item.labels.ticket)]
    return item.labels.run, KINDS.index(item.kind), ticket, name, item.id


def _table(found: Sequence[tuple[str, Item]], now: float) -> Table:
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
            NONE if item.created is None else age(now - item.created),
            shown_owner(item.labels.owner),
            f"in {age(left)}" if left > 0 else "past",
        )
    return table


def _closing(stock: Stock) -> Iterator[str]:
    """The totals, what is shared, and who could not be asked."""
    own = [item for shelf in stock.shelves for item in shelf.items if not item.shared]
    if own:
        runs = len({item.labels.run for item in own} - {""})  # what is half made has none
        yield f"{runs:,} {'run' if runs == 1 else 'runs'} · {counted(item.kind for item in own)}"
    elif stock.shelves:
        yield f"nothing of any run is on {' and '.join(stock.backends)}"
    if going := sum(len(doomed(shelf.items, stock.now)) for shelf in stock.shelves):
        yield (
            f"{going:,} of dead owners or past the expiry: `plimsoll clean --expired` removes "
            f"{'it' if going == 1 else 'them'}, and so does the next run"
        )
    for shelf in stock.shelves:
        if shared := counted(item.kind for item in shelf.items if item.shared):
            yield f"shared by runs on {shelf.inventory.name}: {shared}"
    for name, why in stock.unreached.items():
        yield plain(f"{name} was not asked: {why}")
