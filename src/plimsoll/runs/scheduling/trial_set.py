"""Trial sets: trials that a caller requests and waits for, and that are never trained on.

A trial set is the held-out evaluation of a run, a whole `plimsoll eval` or `plimsoll validate`, or
one call of TRL or verl. Its groups are in the ledger's evaluation books. They share workers and
the cap on running trials with training, and go before it.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.ledger.accounts import evaluation_group
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group, split_ticket
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.files.results import Row
from plimsoll.runs.rollout_buffer import attempt_of
from plimsoll.tasks.task import Task
from plimsoll.workers.messages import Kind, Order

__all__ = ["SetOptions", "TrialGroup", "TrialSet", "TrialSets"]


@dataclass(frozen=True, slots=True)
class TrialGroup:
    """One group of a trial set: trials of a task by an agent."""

    task: Task
    agent: str = ""
    """The agent, if it is not the run's own."""
    attempt: int | None = None
    """The number of the trial, for a group of one; None derives it from the ledger's numbers."""

    @property
    def kind(self) -> Kind:
        return Kind(str(self.task.path), self.task.name, self.agent)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOptions:
    """The rules of a trial set."""

    folder: Callable[[TrialGroup, str], Path]
    """The folder of a trial, by its group and ticket."""
    append: Callable[[Row], Awaitable[None]]
    """Appends a row to the file of this set's results."""
    is_watched: bool
    """The breaker counts its trials, and canaries run between them."""
    is_seeded: bool = True
    """Answers are sampled with the seeds of the config."""
    is_versioned: bool = True
    """The policy's versions are those of the ledger. An external trainer has its own versions."""


class TrialSet:
    """The trials of one caller, and the result of each."""

    def __init__(
        self, name: str, label: str, groups: Sequence[TrialGroup], size: int, options: SetOptions
    ) -> None:
        self.name = name
        """Unique in the ledger."""
        self.groups = groups
        self.total = len(groups) * size
        self.options = options
        self.rows: dict[tuple[str, int], Row] = {}
        """The last row of each member, by the name of its group and its number there."""
        self._label = label
        self._size = size
        self._admitted = 0
        """Groups admitted so far: they are admitted in order."""
        self._live: set[str] = set()
        self._retried: set[tuple[str, int]] = set()
        """Members whose last row is void and that are retried."""

    @property
    def doing(self) -> str:
        """The progress, for display."""
        return f"{self._label} · {len(self.results):,}/{self.total:,} trials"

    @property
    def is_waiting(self) -> bool:
        """True if some of its groups are not admitted yet."""
        return self._admitted < len(self.groups)

    @property
    def upcoming(self) -> Iterator[Kind]:
        """The trials that are not admitted yet."""
        for group in itertools.islice(self.groups, self._admitted, None):
            yield from itertools.repeat(group.kind, self._size)

    async def admit(self, ledger: Ledger, *, training_is_over: bool) -> None:
        """Admit as many groups as the cap on running trials allows."""
        tasks = [group.task.name for group in self.groups]
        admitted = await ledger.admit_evaluation(
            *(self.name, tasks, self._size),
            begun=self._admitted,
            training_is_over=training_is_over,
        )
        self._live.update(group.id for group in admitted)
        self._admitted += len(admitted)

    def restore(
        self, admitted: int, live: Iterable[str], rows: Mapping[tuple[str, int], Row]
    ) -> None:
        """Continue with the groups that an earlier process admitted."""
        self._admitted = admitted
        self._live.update(live)
        self.rows.update(rows)

    @property
    def in_order(self) -> list[Row]:
        """The rows in the order of the groups, for a finished set of groups of one."""
        names = (evaluation_group(self.name, number) for number in range(len(self.groups)))
        return [self.rows[(name, 0)] for name in names]

    def holds(self, group: str) -> bool:
        return group in self._live

    def is_over(self, books: Books) -> bool:
        """True if every trial is final."""
        return not self.is_waiting and self._live.isdisjoint(books.evals)

    def group_of(self, group: Group) -> TrialGroup:
        return self.groups[group.prompt]

    def order(self, group: Group, ticket: str, folder: Path) -> Order:
        parts = split_ticket(ticket)
        assert parts is not None, f"{ticket} is not a ticket"
        chosen = self.group_of(group)
        attempt = chosen.attempt or attempt_of(group, parts[1])
        return Order(
            ticket=ticket,
            task=str(chosen.task.path),
            name=chosen.task.name,
            attempt=attempt,
            folder=str(folder.absolute()),
            seed_name=group.seed_name(parts[1]) if self.options.is_seeded else "",
            agent=chosen.agent,
        )

    def add(self, row: Row) -> None:
        """Set the row of a member. A retry moves it to the end of the order."""
        member = _member(row.ticket)
        before = self.rows.get(member)
        if before is not None and before.ticket != row.ticket:
            del self.rows[member]
        self.rows[member] = row

    def is_graded(self, row: Row) -> bool:
        """True if this row is still the last of its member and graded."""
        return self.graded(row.ticket) is row

    def settle(self, ticket: str, books: Books) -> None:
        """Record if a member is final, once the ledger has the end of its ticket."""
        group, index = _member(ticket)
        live = books.evals.get(group)
        if live is not None and not live.members[index].final:
            self._retried.add((group, index))
        else:
            self._retried.discard((group, index))

    @property
    def results(self) -> list[Row]:
        """The row of every member that is final, in the order they finished."""
        return [row for member, row in self.rows.items() if member not in self._retried]

    def graded(self, ticket: str) -> Row | None:
        """The graded row of a ticket, if it is the last of its member."""
        row = self.rows.get(_member(ticket))
        return row if row is not None and row.ticket == ticket and row.reward is not None else None


class TrialSets:
    """The trial sets that callers wait for, in the order they came."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._all: dict[str, TrialSet] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[TrialSet]:
        return iter(self._all.values())

    @property
    def doing(self) -> str:
        """The progress of the first; empty if there is none."""
        return next((one.doing for one in self), "")

    @property
    def are_waiting(self) -> bool:
        """True if groups are not admitted yet: training is not admitted before them."""
        return any(one.is_waiting for one in self)

    @property
    def upcoming(self) -> Iterator[Kind]:
        """The trials that are not admitted yet, in order."""
        return itertools.chain.from_iterable(one.upcoming for one in self)

    def new_name(self, label: str) -> str:
        """A name that no set of this run has used."""
        return self._ledger.evaluation_name(label, self._all.keys())

    def begin(self, trial_set: TrialSet) -> None:
        self._all[trial_set.name] = trial_set

    async def give_up(self, trial_set: TrialSet) -> None:
        """End a set: its caller no longer waits, and its unfinished trials never run."""
        del self._all[trial_set.name]
        await self._ledger.give_up_evaluation(trial_set.name)

    async def admit(self, *, training_is_over: bool) -> None:
        for one in list(self):
            if one.is_waiting:
                await one.admit(self._ledger, training_is_over=training_is_over)

    def of(self, group: str) -> TrialSet | None:
        """The set that a group belongs to."""
        return next((one for one in self if one.holds(group)), None)


def _member(ticket: str) -> tuple[str, int]:
    parts = split_ticket(ticket)
    assert parts is not None, f"{ticket} is not a ticket"
    return parts[:2]
