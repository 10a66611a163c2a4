"""Simulated runs of every kind, each a function of its seed."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.ledger.books.books import Books
from plimsoll.ledger.events import Event
from plimsoll.ledger.journal import snapshot
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.ledger import read_books
from plimsoll.ledger.recovery import subject_of
from plimsoll.ledger.settings import Settings
from plimsoll.ledger.simulator.scenario import DURATIONS, Faults, Plan, Run
from plimsoll.ledger.simulator.training import Store, Training


def settings_for(rng: random.Random) -> Settings:
    depth = rng.randint(0, 3)
    size = rng.randint(1, 3)
    batch = rng.randint(1, 4)
    return Settings(
        batch_groups=batch,
        max_running=rng.choice([size, size * batch, size * batch * (depth + 1), 50]),
        depth=depth,
        max_staleness=depth + rng.choice([0, 0, 1, 3]),
        group_size=size,
        group_policy=rng.choice(["complete", "min_graded", "void"]),
        min_graded=rng.randint(1, size),
        requeues=rng.randint(0, 4),
    )


def faults_for(rng: random.Random) -> Faults:
    crashes = rng.random() < 0.6
    return Faults(
        void=rng.choice([0, 0, 0.05, 0.2]),
        dropped=rng.choice([0, 0, 0.05]),
        doubled=rng.choice([0, 0.1, 0.5]),
        late=rng.choice([0, 0.2]),
        crash_every=rng.randint(3, 60) if crashes else 0,
        crashes=rng.randint(1, 10),
        power=rng.choice([0, 0.3, 1]),
        adopted=rng.choice([0, 0.5, 1]),
        new_settings=tuple(settings_for(rng) for _ in range(rng.choice([0, 0, 2]))),
    )


def plan_for(seed: int) -> Plan:
    """A small run of any kind. Most check the books occasionally, some after every event."""
    rng = random.Random(seed)
    settings = settings_for(rng)
    return Plan(
        settings=settings,
        steps=rng.randint(3, 8),
        tasks=rng.choice([3, 40]),
        durations=rng.choice(list(DURATIONS)),
        step_seconds=rng.choice([0.1, 1.0, 5.0]),
        slack=rng.choice([0.0, 1.0, 10.0]),
        resumes=rng.random() < 0.3,
        ends=seed % 3 == 0,
        workers=rng.choice([0, 0, 0, settings.group_size, 1]),
        watchdog=rng.choice([20.0, 200.0]),
        checkpoint_every=rng.choice([1, 1, 2, 3]),
        evaluate_every=rng.choice([0, 0, 1, 2]),
        faults=replace(faults_for(rng), rejected=(0, 0, 0.1, 0.3)[seed // 7 % 4]),
        early=rng.choice([0.0, 0.5]),
        seed=seed,
        check_every=1 if seed % 10 == 0 else 20,
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of many runs."""

    runs: int
    steps: int
    crashes: int
    rollbacks: int
    withheld: int
    quarantined: int
    max_age: int


def simulate_many(seeds: range) -> Totals:
    """Simulate each seed; `BrokenPromise` names it. May run in a separate process."""
    done = [Training(plan_for(seed)) for seed in seeds]
    runs = [one.run() for one in done]
    books = [one.accounts.books for one in done]
    for run, one in zip(runs, done, strict=True):
        assert run.longest_step <= longest_step(one.plan, run), f"seed {one.plan.seed}"
    return Totals(
        runs=len(runs),
        steps=sum(run.steps for run in runs),
        crashes=sum(run.crashes for run in runs),
        rollbacks=sum(one.rollbacks for one in books),
        withheld=sum(one.tally.withheld for one in books),
        quarantined=sum(one.tally.quarantined for one in books),
        max_age=max(run.max_age for run in runs),
    )


def longest_step(plan: Plan, run: Run) -> float:
    """A bound on the time of a step: all attempts of all members of the groups that it needs.

    Loose, but no run may exceed it: a hundred times the longest rollout for each start of the
    process.
    """
    return (run.crashes + 1) * (100 * plan.watchdog + plan.slack + plan.step_seconds)


class JournalStore(Store):
    """Keeps events in a real journal."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal.create(path)
        super().__init__()

    def _keep(self, event: Event) -> None:
        assert self._journal.append([(event, subject_of(event))]) == 1
        super()._keep(event)

    def about(self, subject: str) -> list[Event]:
        found = self._journal.about(subject)
        assert found == super().about(subject)
        return found

    def books(self) -> Books:
        path = self._journal.path
        self._journal.close()
        self._journal = Journal.open(path, writable=True)
        books = read_books(self._journal)
        assert snapshot.dump(books) == snapshot.dump(super().books())
        self._journal.keep_snapshot(snapshot.dump(books))
        return books

    def close(self) -> None:
        self._journal.close()
