"""A simulated run of training that the real ledger keeps the books of.

Rollouts take the time they are given, completions arrive twice or never, the process is
killed at any write and starts again from a checkpoint. After every event all that the ledger
promises is checked: a run that ends has kept every promise.
"""

import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from plimsoll.core.endings import Ending
from plimsoll.ledger.accounts import Accounts
from plimsoll.ledger.batching import Batch
from plimsoll.ledger.books import Books
from plimsoll.ledger.events import Consumed, Segment
from plimsoll.ledger.group import split_ticket
from plimsoll.ledger.order import DataOrder
from plimsoll.ledger.settings import Settings
from plimsoll.ledger.sim.durations import Duration, draw
from plimsoll.ledger.sim.faults import Faults
from plimsoll.ledger.sim.store import Crash, Store
from plimsoll.ledger.versions import FIRST, Version
from plimsoll.trials.verdicts import Cause, Graded, Void

__all__ = ["BrokenPromise", "Plan", "Run", "Training"]

_Kind = Literal["done", "trained", "slack", "watchdog"]
_Happening = tuple[float, int, _Kind, str, Version]
"""When, a number that breaks ties, what, about which ticket or group, at which version."""


class BrokenPromise(AssertionError):
    """The ledger did not keep what it promises; the message says which promise, and the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is simulated."""

    settings: Settings
    steps: int
    tasks: int = 200
    durations: Duration = "lognormal"
    step_seconds: float = 1.0
    """How long the trainer takes for a batch."""
    slack: float = 2.0
    """How long a group that is due is waited for."""
    resumes: bool = False
    """Whether rollouts can go on with newer weights."""
    watchdog: float = 500.0
    """After so long a rollout that says nothing is taken to be lost."""
    checkpoint_every: int = 1
    evaluate_every: int = 0
    """Evaluation groups are admitted at every so manyth version; 0 for never."""
    faults: Faults = field(default_factory=Faults)
    seed: int = 0


@dataclass(slots=True)
class Run:
    """What came of it."""

    seconds: float = 0.0
    steps: int = 0
    max_age: int = 0
    busy: float = 0.0
    generated: float = 0.0
    trained: float = 0.0
    crashes: int = 0
    duration_bias: float | None = None
    batches: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """The prompts of each step's batch, in the lineage that survived."""


class Training:
    """One run. `run` raises `BrokenPromise` at the first promise that is not kept."""

    def __init__(self, plan: Plan, *, restart_at: int = 0) -> None:
        self.plan = plan
        self._restart_at = restart_at
        """A version at which the process is killed, once; 0 for none."""
        self.store = Store()
        self.result = Run()
        self._rng = random.Random(f"{plan.seed}:world")
        self._order = DataOrder([f"task-{n}" for n in range(plan.tasks)], seed=plan.seed)
        self._now = 0.0
        self._numbers = itertools.count()
        self._events: list[_Happening] = []
        self._running: dict[str, tuple[float, Version]] = {}
        self._slack: dict[str, float] = {}
        self._checkpoints = [FIRST]
        self._lost = 0.0
        self._shrunk = False
        self.accounts = self._open(Books())

    def _open(self, books: Books) -> Accounts:
        return Accounts(books, self.store.put, self.store, lambda: self._now)

    def run(self) -> Run:
        """Simulate until the wanted number of steps is committed."""
        faults = self.plan.faults
        self.store.crash_at = faults.crash_at or faults.crash_every or None
        self._protected(lambda: self.accounts.configure(self.plan.settings))
        self._settle()
        while self.accounts.books.version.number < self.plan.steps:
            if not self._events:
                if self.accounts.books.quarantined.keys() >= set(self._order.tasks):
                    break
                self._fail("nothing happens any more, and the run is not at its end")
            happens = heapq.heappop(self._events)
            self._now = happens[0]
            if not self._protected(functools.partial(self._happen, *happens[2:])):
                self._deliver_again(happens)
            self._settle()
            self._check()
        return self._finish()

    def _finish(self) -> Run:
        result, tally = self.result, self.accounts.books.tally
        result.seconds = self._now
        result.steps = self.accounts.books.version.number
        result.max_age = max(tally.head_ages, default=0)
        result.generated = tally.offered_seconds + self._lost + self._unfinished()
        result.trained = tally.trained_seconds
        result.duration_bias = tally.duration_bias
        result.batches = self._consumed_once()
        return result

    def _protected(self, work: Callable[[], None]) -> bool:
        """Do something that may be cut short by a crash at any write; whether it was not."""
        try:
            work()
        except Crash:
            self._restart()
            return False
        return True

    def _deliver_again(self, happens: _Happening) -> None:
        """What a worker has to say, and nobody heard to the end, it says again."""
        if happens[3] in self._running:
            heapq.heappush(self._events, happens)

    def _unfinished(self) -> float:
        """What has been generated for rollouts that run."""
        return sum(self._now - started for started, _ in self._running.values())

    def _settle(self) -> None:
        """Let the controller do all that it can do now, however often it is killed."""
        while not self._protected(self._pump):
            pass

    def _happen(self, kind: _Kind, about: str, version: Version) -> None:
        match kind:
            case "done":
                self._complete(about, version)
            case "trained":
                if self.accounts.books.training and version == self.accounts.books.version:
                    self._trained()
            case "slack":
                self._slack.pop(about, None)
                self.accounts.attend(about, slack_left=False, can_resume=self.plan.resumes)
            case "watchdog":
                if about in self._running:
                    self.accounts.void(about, Void(Cause.LOST, "it says nothing"), 0.0)
                    self._running.pop(about)

    def _complete(self, ticket: str, version: Version) -> None:
        started, _ = self._running.get(ticket, (self._now, version))
        rng = random.Random(f"{self.plan.seed}:{ticket}:end")
        seconds = self._now - started
        cause = self.plan.faults.cause(rng)
        for _ in range(2 if rng.random() < self.plan.faults.doubled else 1):
            if cause is not None:
                self.accounts.void(ticket, Void(cause, "simulated"), seconds)
            else:
                reward = Graded(rng.random(), Ending.SUBMITTED)
                segments = [Segment(version, 100), Segment(self.accounts.books.version, 100)]
                self.accounts.finish(ticket, reward, seconds, segments)
        self._running.pop(ticket, None)

    def _trained(self) -> None:
        number = self.accounts.books.version.number + 1
        at = Version(self.accounts.books.version.lineage, number)
        kept = number % self.plan.checkpoint_every == 0
        if kept:
            # The manifest is renamed into its place before the journal hears of it.
            self._checkpoints.append(at)
        self.accounts.commit("kept" if kept else "")
        self.accounts.shed()
        if number == self._restart_at:
            self._restart_at = 0
            raise Crash

    def _pump(self) -> None:
        """What a controller does whenever something has changed."""
        books = self.accounts.books
        self.accounts.admit(self._order)
        self._evaluate()
        for ticket in self.accounts.waiting():
            self.accounts.start(ticket, "worker")
            self._launch(ticket)
        if not books.training:
            choice = self.accounts.choose()
            if isinstance(choice, Batch):
                self.accounts.consume(choice)
                self.result.busy += self.plan.step_seconds
                self._at(self.plan.step_seconds, "trained", "", books.version)
            else:
                for group in choice.due:
                    if group not in self._slack:
                        self._slack[group] = self._now
                        self._at(self.plan.slack, "slack", group, books.version)

    def _evaluate(self) -> None:
        every, version = self.plan.evaluate_every, self.accounts.books.version
        if every and version.number % every == 0:
            live = self.accounts.books.live
            self.accounts.admit_evaluation(f"{version}", ["task-0", "task-1"], 1)
            if self.accounts.books.live != live:
                self._fail("an evaluation used up room of training")

    def _launch(self, ticket: str) -> None:
        parts = split_ticket(ticket)
        rng = random.Random(f"{self.plan.seed}:{ticket if parts is None else parts}")
        version = self.accounts.books.version
        self._running[ticket] = (self._now, version)
        takes = draw(self.plan.durations, rng)
        faults = self.plan.faults
        if rng.random() < faults.dropped or math.isinf(takes):
            self._at(self.plan.watchdog, "watchdog", ticket, version)
            return
        if rng.random() < faults.late:
            takes += draw("lognormal", rng)
        self._at(takes, "done", ticket, version)

    def _at(self, after: float, kind: _Kind, about: str, version: Version) -> None:
        heapq.heappush(self._events, (self._now + after, next(self._numbers), kind, about, version))

    def _restart(self) -> None:
        """The process was killed: read the journal again, and go on from a checkpoint."""
        plan, rng = self.plan, self._rng
        self.result.crashes += 1
        if rng.random() < plan.faults.power:
            self.store.lose_power()
        self._slack.clear()
        self._events = [event for event in self._events if event[2] in ("done", "watchdog")]
        heapq.heapify(self._events)
        lost = self._unfinished()
        survivors = {t for t in sorted(self._running) if rng.random() < plan.faults.adopted}
        self._running = {t: x for t, x in self._running.items() if t in survivors}
        self._lost += lost - self._unfinished()
        self.accounts = self._open(self.store.books())
        if plan.faults.crash_every and self.result.crashes < plan.faults.crashes:
            self.store.crash_at = self.store.writes + plan.faults.crash_every
        if plan.faults.new_settings and rng.random() < 0.5:
            self._protected(lambda: self._reconfigure(rng.choice(plan.faults.new_settings)))
        self._protected(lambda: self._recover(survivors))

    def _reconfigure(self, settings: Settings) -> None:
        self._shrunk = True
        self.accounts.configure(settings)

    def _recover(self, survivors: set[str]) -> None:
        if self.accounts.books.settings is None:
            self.accounts.configure(self.plan.settings)
        books = self.accounts.books
        ahead = Version(books.version.lineage, books.version.number + 1)
        known = [
            at for at in self._checkpoints
            if books.lineages.descends(books.version, at) or (at == ahead and books.training)
        ]  # fmt: skip
        at = max(known, key=lambda at: at.number)
        version = self.accounts.recover(at, lambda ticket, _: ticket in survivors)
        self._checkpoints = [*known, version] if version not in known else known

    def _check(self) -> None:
        books, settings = self.accounts.books, self.accounts.settings
        if wrong := books.check():
            self._fail("; ".join(wrong))
        if books.live > settings.most_live and not self._shrunk:
            self._fail(f"{books.live} groups are live, {settings.most_live} may be")
        oldest = max(books.tally.head_ages, default=0)
        bound = max([settings, self.plan.settings, *self.plan.faults.new_settings],
                    key=lambda s: s.max_staleness).max_staleness  # fmt: skip
        if oldest > bound:
            self._fail(f"a sample of age {oldest} was trained on, {bound} is allowed")

    def _consumed_once(self) -> dict[int, tuple[int, ...]]:
        """The surviving lineage's batches; no prompt is in two of them."""
        books = self.accounts.books
        batches: dict[int, tuple[int, ...]] = {}
        for event in self.store.events:
            after = Version(0, 0)
            if isinstance(event, Consumed):
                after = Version(event.version.lineage, event.version.number + 1)
            if isinstance(event, Consumed) and books.lineages.descends(books.version, after):
                batches[event.version.number] = tuple(
                    int(group.partition("-")[0]) for group in event.groups
                )
        prompts = [prompt for batch in batches.values() for prompt in batch]
        if len(prompts) != len(set(prompts)):
            self._fail("a prompt was trained on twice")
        if len(batches) != books.version.number:
            self._fail(f"version {books.version} is made of {len(batches)} batches")
        return batches

    def _fail(self, what: str) -> None:
        raise BrokenPromise(f"{what} (seed {self.plan.seed}, at {self._now:.2f})")
