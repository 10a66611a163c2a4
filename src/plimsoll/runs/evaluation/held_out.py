"""Evaluations of a run: held-out tasks, tried with the weights of the moment.

They share workers and the cap on trials with training, and nothing else: their groups are in
the ledger's evaluation books, their trials in `heldout/` and `heldout_trials.jsonl`. None of
them is in a batch, and the breaker does not count them.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from plimsoll.core.versions import Lineages, Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import split_ticket
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.json_lines import read_lines
from plimsoll.runs.results import Row, mean

__all__ = ["HeldOutEvaluation", "HeldOutEvaluations", "HeldOutResult", "read_held_out"]


class HeldOutResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one evaluation: a line of `heldout.jsonl`."""

    name: str
    step: int
    version: str
    """Of the weights when it began."""
    reward: float | None
    """The mean of the tasks' means; None where no trial is graded."""
    graded: int
    void: dict[str, int]
    """Trials that stay void, by cause. A task without a graded one has no part in the mean."""
    tasks: dict[str, float | None]
    """The mean of each task's graded trials; None where none is."""
    seconds: float


class HeldOutEvaluation:
    """An evaluation under way."""

    def __init__(self, name: str, label: str, tasks: Sequence[str], size: int, at: Version) -> None:
        self.name = name
        """In the ledger: no two have the same."""
        self._label = label
        self._tasks = tasks
        self._size = size
        self._at = at
        self._began = time.monotonic()
        self._begun = 0
        self._groups: set[str] = set()
        self._rows: dict[tuple[str, int], Row] = {}
        """The last of each place: of one that was void and tried again, the new one."""

    @property
    def doing(self) -> str:
        """How far it is, for a person."""
        total = len(self._tasks) * self._size
        return f"held-out tasks {self._label} · {len(self._rows):,}/{total:,} trials"

    @property
    def is_waiting(self) -> bool:
        """Whether some of it is not admitted yet."""
        return self._begun < len(self._tasks)

    @property
    def coming(self) -> Iterator[str]:
        """The tasks of its trials that are not admitted yet."""
        for task in itertools.islice(self._tasks, self._begun, None):
            yield from itertools.repeat(task, self._size)

    async def admit(self, ledger: Ledger, *, training_is_over: bool) -> None:
        """Admit as much of it as the cap on trials allows."""
        admitted = await ledger.admit_evaluation(
            *(self.name, self._tasks, self._size),
            begun=self._begun,
            training_is_over=training_is_over,
        )
        self._groups.update(group.id for group in admitted)
        self._begun += len(admitted)

    def holds(self, group: str) -> bool:
        return group in self._groups

    def add(self, row: Row) -> None:
        """A trial of it has come to its end."""
        parts = split_ticket(row.ticket)
        assert parts is not None, f"{row.ticket} is no ticket"
        self._rows[parts[:2]] = row

    def is_over(self, books: Books) -> bool:
        return not self.is_waiting and self._groups.isdisjoint(books.evals)

    def measured(self) -> HeldOutResult:
        """What came of it, once it is over."""
        rows = self._rows.values()
        rewards: dict[str, list[float]] = {task: [] for task in self._tasks}
        for row in rows:
            if row.reward is not None:
                rewards[row.task].append(row.reward)
        tasks = {task: mean(of_task) for task, of_task in rewards.items()}
        return HeldOutResult(
            name=self._label,
            step=self._at.number,
            version=str(self._at),
            reward=mean(one for one in tasks.values() if one is not None),
            graded=sum(row.reward is not None for row in rows),
            void=dict(Counter(row.cause.value for row in rows if row.cause).most_common()),
            tasks=tasks,
            seconds=round(time.monotonic() - self._began, 3),
        )


class HeldOutEvaluations:
    """All that are under way, by their names."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._all: dict[str, HeldOutEvaluation] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def doing(self) -> str:
        """How far the first of them is; empty where there is none."""
        return next((one.doing for one in self._all.values()), "")

    @property
    def are_waiting(self) -> bool:
        """Whether some of them is not admitted yet: training is not admitted before it."""
        return any(one.is_waiting for one in self._all.values())

    @property
    def coming(self) -> Iterator[str]:
        """The tasks of trials that are not admitted yet, the first one first."""
        return itertools.chain.from_iterable(one.coming for one in self._all.values())

    def begin(self, label: str, tasks: Sequence[str], size: int) -> HeldOutEvaluation:
        books = self._ledger.books
        # One that was begun a moment ago is not in the ledger yet.
        name = self._ledger.evaluation_name(label, self._all.keys())
        made = self._all[name] = HeldOutEvaluation(name, label, tasks, size, books.version)
        return made

    async def end(self, evaluation: HeldOutEvaluation) -> None:
        """Nobody waits for it any more, whether it is over or not."""
        del self._all[evaluation.name]
        await self._ledger.give_up_evaluation(evaluation.name)

    async def admit(self, *, training_is_over: bool) -> None:
        for one in list(self._all.values()):
            if one.is_waiting:
                await one.admit(self._ledger, training_is_over=training_is_over)

    def of(self, group: str) -> HeldOutEvaluation | None:
        """The one that a group belongs to."""
        return next((one for one in self._all.values() if one.holds(group)), None)


def read_held_out(path: Path, lineages: Lineages, now: Version) -> list[HeldOutResult]:
    """The evaluations of versions that the one of now descends from, in order.

    Of two of one version and name, the last.
    """
    kept: Mapping[tuple[str, str], HeldOutResult] = {
        (line.version, line.name): line
        for line in read_lines(path, HeldOutResult)
        if lineages.descends(now, Version.parse(line.version))
    }
    return sorted(kept.values(), key=lambda line: line.step)
