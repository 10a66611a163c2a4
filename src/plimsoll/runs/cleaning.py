"""What `plimsoll clean` is to remove, and what it leaves and why."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from plimsoll.core.errors import UsageError
from plimsoll.core.ids import Owner
from plimsoll.runs.inventories import Shelf, Stock
from plimsoll.sandboxes.inventory import KINDS, Item
from plimsoll.sandboxes.owners import is_alive, is_here
from plimsoll.sandboxes.reaper import doomed, held, remove_all

__all__ = [
    "Choice",
    "Left",
    "choose_all",
    "choose_expired",
    "choose_run",
    "of_live_owners",
    "of_others",
]

_SHOWN_RUNS = 10
OnEnd = Callable[[str, Item, str], None]


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is not removed, and why."""

    backend: str
    item: Item
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What goes and what stays."""

    going: tuple[Shelf, ...]
    left: tuple[Left, ...] = ()
    shared: int = 0
    """How much the run made that serves others too, and stays."""

    @property
    def items(self) -> Iterator[tuple[str, Item]]:
        """All that goes, with its backend, in the order of removal."""
        return ((s.inventory.name, item) for s in self.going for item in s.items)

    async def carry_out(self, on_end: OnEnd) -> None:
        """Remove it; `on_end` is told each with why it could not be, or ""."""
        for shelf in self.going:
            name = shelf.inventory.name
            await remove_all(
                shelf.inventory, shelf.items, lambda item, why, name=name: on_end(name, item, why)
            )


def choose_expired(stock: Stock) -> Choice:
    """Just what the reaper would remove."""
    return Choice(
        tuple(Shelf(s.inventory, tuple(doomed(s.items, stock.now))) for s in stock.shelves)
    )


def choose_all(stock: Stock) -> Choice:
    """Everything, shared things too, but what others hold on to or are just making."""

    def wanted(item: Item) -> bool:
        labels = item.labels
        return bool(labels.run) or labels.expires < stock.now or not is_alive(labels.owner)

    return _choose(stock, wanted)


def choose_run(stock: Stock, run: str, *, is_known: bool = False) -> Choice:
    """All of one run but what it shares with others. `is_known`: it need not have anything."""
    names = sorted({i.labels.run for s in stock.shelves for i in s.items if i.labels.run})
    if run not in names and not is_known:
        raise UsageError(_no_such_run(run, names, stock))
    chosen = _choose(stock, lambda item: item.labels.run == run and not item.shared)
    shared = sum(i.shared and i.labels.run == run for s in stock.shelves for i in s.items)
    return Choice(chosen.going, chosen.left, shared)


def of_live_owners(choice: Choice, now: float) -> dict[Owner, list[Item]]:
    """What goes although its owner lives, or may live: on another host it cannot be asked."""
    found: dict[Owner, list[Item]] = {}
    for _, item in choice.items:
        owner = item.labels.owner
        if is_alive(owner) and (is_here(owner) or item.labels.expires >= now):
            found.setdefault(owner, []).append(item)
    return found


def of_others(living: Iterable[Owner], own: int) -> list[Owner]:
    """Live processes of this host, where they are more than the `own` that a run can have.

    The label says only the last name of a run's directory, and another's may be called the same.
    """
    here = [owner for owner in living if is_here(owner)]
    return here if len(here) > own else []


def _choose(stock: Stock, wanted: Callable[[Item], bool]) -> Choice:
    going: list[Shelf] = []
    left: list[Left] = []
    for shelf in stock.shelves:
        chosen = sorted(filter(wanted, shelf.items), key=lambda item: KINDS.index(item.kind))
        kept = held(chosen)
        going.append(Shelf(shelf.inventory, tuple(i for i in chosen if i not in kept)))
        left += (
            Left(shelf.inventory.name, item, f"used by {', '.join(_named(users, shelf.items))}")
            for item, users in kept.items()
        )
    return Choice(tuple(going), tuple(left))


def _named(users: Sequence[str], items: Sequence[Item]) -> Iterator[str]:
    """Who uses something, for a person: our own containers by their run."""
    ours = {item.id: item for item in items}
    for user in users:
        item = ours.get(user)
        yield user if item is None else f"{item.name or item.id} of run {item.labels.run}"


def _no_such_run(run: str, names: Sequence[str], stock: Stock) -> str:
    said = f"no run is called {run!r}" if run.strip() else "the name of the run is empty"
    close = [name for name in names if run.strip() and run in name]
    close += (n for n in difflib.get_close_matches(run, names, _SHOWN_RUNS) if n not in close)
    shown = (close or list(names))[:_SHOWN_RUNS]
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    here = f"runs here: {', '.join(shown)}{more}" if names else "no run has anything here"
    not_asked = "".join(f"; {name} was not asked: {why}" for name, why in stock.unreached.items())
    return f"{said}; {here}{not_asked}"
