"""A simulated training run on the real ledger, with its faults.

Rollouts take their given time, completions arrive twice or never, the process is killed at any
write and restarts from a checkpoint. After every event all guarantees of the ledger are checked: a
run that ends has kept every one.
"""

import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable
from typing import Literal, NoReturn

from plimsoll.core.endings import Ending
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.accounts import Accounts
from plimsoll.ledger.audit import Auditor, disagreements
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import split_ticket
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.events import Event, Segment
from plimsoll.ledger.journal.journal import is_durable
from plimsoll.ledger.recovery import can_restore, subject_of
from plimsoll.ledger.rules.admission import LastGroups
from plimsoll.ledger.rules.batching import Batch, Waiting
from plimsoll.ledger.settings import Settings
from plimsoll.ledger.simulator.scenario import BrokenPromise, Plan, Run, chance, draw
from plimsoll.trials.verdicts import Cause, Graded, Void

__all__ = ["Crash", "Store", "Training"]


class Crash(Exception):
    """The writing process has been killed."""


class Store:
    """Stores events as the journal does, in order and by subject, and audits them."""

    def __init__(self) -> None:
        self.writes = 0
        self.crash_at: int | None = None
        """The number of the write at which the process is killed."""
        self.keeps_last = True
        """Whether the event of that write is stored all the same."""
        self._begin([])

    def _begin(self, events: Iterable[Event]) -> None:
        self.events: list[Event] = []
        self.auditor = Auditor()
        self._about: dict[str, list[Event]] = {}
        for event in events:
            self._keep(event)

    def _keep(self, event: Event) -> None:
        self.events.append(event)
        self.auditor.take(event)
        self._about.setdefault(subject_of(event), []).append(event)

    def put(self, event: Event) -> None:
        self.writes += 1
        crashes = self.crash_at is not None and self.writes >= self.crash_at
        if not crashes or self.keeps_last:
            self._keep(event)
        if crashes:
            self.crash_at = None
            raise Crash

    def about(self, subject: str) -> list[Event]:
        return self._about.get(subject, [])

    def lose_power(self) -> None:
        """Drop everything written after the last event that had to be synced."""
        last = max((n for n, event in enumerate(self.events) if is_durable(event)), default=0)
        self._begin(self.events[: last + 1])

    def books(self) -> Books:
        """The books of all events."""
        books = Books()
        for event in self.events:
            assert books.apply(event), f"{event} cannot follow those before"
        return books


_Kind = Literal["done", "trained", "slack", "watchdog"]
_Happening = tuple[float, int, _Kind, str, Version]
"""An occurrence: time, tie breaker, kind, ticket or group, version."""


class Training:
    """One run. `run` raises `BrokenPromise` at the first broken promise."""

    def __init__(
        self,
        plan: Plan,
        *,
        restart_at: int = 0,
        store: Store | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self._restart_at = restart_at
        """A version at which the process is killed once; 0 for none."""
        self.store = Store() if store is None else store
        self._progress = progress
        self.result = Run()
        self._rng = random.Random(f"{plan.seed}:world")
        self._tasks = [f"task-{n}" for n in range(plan.tasks)]
        self._order = DataOrder(self._tasks, seed=plan.seed)
        self._now = 0.0
        self._committed_at = 0.0
        self._numbers = itertools.count()
        self._events: list[_Happening] = []
        self._running: dict[str, tuple[float, Version]] = {}
        self._slack: set[str] = set()
        self._last = LastGroups(plan.slack)
        self._evaluation: tuple[Version, str, int] | None = None
        """Version, name and admitted groups of the last evaluation."""
        self._early: dict[str, Version] = {}
        """Running rollouts with tokens of a version that was never committed."""
        self._checkpoints = [FIRST_VERSION]
        self._lost = 0.0
        self._voided = 0
        self._was_changed = False
        self._may_overflow = False
        """Live groups may exceed the settings: earlier settings allowed more, and so does a
        rollback to their time."""
        self.accounts = self._open(Books())

    def _open(self, books: Books) -> Accounts:
        return Accounts(books, self.store.put, self.store, lambda: self._now)

    def run(self) -> Run:
        """Simulate until the requested number of steps is committed."""
        faults = self.plan.faults
        self._kill_at(faults.crash_at or faults.crash_every)
        self._protected(lambda: self.accounts.configure(self.plan.settings))
        self._settle()
        for number in itertools.count(1):
            if self.accounts.books.version.number >= self.plan.steps:
                break
            if not self._events:
                if self._order.is_empty_without(self.accounts.books.quarantined.keys()):
                    break
                self._fail("nothing happens any more, and the run is not at its end")
            happens = heapq.heappop(self._events)
            self._now = happens[0]
            if not self._protected(functools.partial(self._happen, *happens[2:])):
                self._deliver_again(happens)
            self._settle()
            self._check(in_full=number % self.plan.check_every == 0)
        return self._finish()

    def _finish(self) -> Run:
        self._check(in_full=True)
        books, auditor = self.accounts.books, self.store.auditor
        if wrong := auditor.against(books):
            self._fail("; ".join(wrong))
        result, tally = self.result, books.tally
        result.seconds = self._now
        result.steps = books.version.number
        result.generated = tally.offered_seconds + self._lost + self._unfinished()
        result.trained = tally.trained_seconds
        result.duration_bias = tally.duration_bias
        result.batches = auditor.prompts()
        result.writes = self.store.writes
        return result

    def _protected(self, work: Callable[[], None]) -> bool:
        """Do something that a crash may interrupt at any write; whether it completed."""
        try:
            work()
        except Crash:
            self._restart()
            return False
        return True

    def _deliver_again(self, happens: _Happening) -> None:
        """Deliver a worker's message again if it was not received completely."""
        if happens[3] in self._running:
            heapq.heappush(self._events, happens)

    def _unfinished(self) -> float:
        """The generation of running rollouts."""
        return sum(self._now - started for started, _ in self._running.values())

    def _settle(self) -> None:
        """Let the controller do everything it can do now, however often it is killed."""
        while not self._protected(self._pump):
            pass

    def _happen(self, kind: _Kind, about: str, version: Version) -> None:
        match kind:
            case "done":
                self._complete(about, version)
            case "trained":
                if self.accounts.books.is_training and version == self.accounts.books.version:
                    self._trained()
            case "slack":
                self._slack.discard(about)
                self.accounts.attend(about, slack_left=False, can_resume=self.plan.resumes)
            case "watchdog":
                if about in self._running:
                    silent = Void(Cause.LOST, "it says nothing")
                    self.accounts.void(about, silent, self.plan.watchdog)
                    self._running.pop(about)

    def _complete(self, ticket: str, version: Version) -> None:
        started, _ = self._running.get(ticket, (self._now, version))
        rng = chance(self.plan.seed, ticket, "end")
        seconds = self._now - started
        cause = self.plan.faults.cause(rng)
        for _ in range(2 if rng.random() < self.plan.faults.doubled else 1):
            if cause is not None:
                self.accounts.void(ticket, Void(cause, "simulated"), seconds)
            else:
                reward = Graded(rng.random(), Ending.SUBMITTED)
                self.accounts.finish(ticket, reward, seconds, self._segments(ticket, version, rng))
        self._running.pop(ticket, None)
        self._early.pop(ticket, None)

    def _segments(self, ticket: str, began: Version, rng: random.Random) -> list[Segment]:
        """The versions that generated a rollout. A policy has new weights before the commit."""
        now = self.accounts.books.version
        early = self._early.get(ticket)
        if self.accounts.books.is_training and rng.random() < self.plan.early:
            early = early or _next(now)
        versions = [began, now] if early is None else [began, now, early]
        return [Segment(version, 100) for version in versions]

    def _trained(self) -> None:
        at = _next(self.accounts.books.version)
        number = at.number
        is_saved = number % self.plan.checkpoint_every == 0
        if is_saved:
            # The manifest is renamed into place before the journal records the commit.
            self._checkpoints.append(at)
        self.accounts.commit("kept" if is_saved else "")
        self.result.longest_step = max(self.result.longest_step, self._now - self._committed_at)
        self._committed_at = self._now
        if self._progress is not None:
            self._progress(number)
        if number == self._restart_at:
            self._restart_at = 0
            raise Crash

    def _pump(self) -> None:
        """The turn of a controller after a change."""
        self._cancel_given_up()
        self.accounts.admit(self._order, self._most())
        self._evaluate()
        self._start()
        while not self.accounts.books.is_training:
            choice = self.accounts.choose()
            if isinstance(choice, Batch):
                self._train(choice)
            elif not self._wait(choice):
                break

    def _most(self) -> int | None:
        """The number of further groups that the remaining steps can use; None if it never ends."""
        if not self.plan.ends:
            return None
        books, settings = self.accounts.books, self.accounts.settings
        before = self._last.lacking_since
        steps = self.plan.steps - books.version.number
        most = self._last.most(books, settings, steps, self._now)
        if math.isinf(before) and not math.isinf(self._last.lacking_since):
            self._at(self.plan.slack, "slack", "", books.version)
        return most

    def _start(self) -> None:
        seats = (self.plan.workers or math.inf) - len(self._running)
        for number, ticket in enumerate(self.accounts.waiting()):
            if number >= seats:
                break
            self.accounts.start(ticket, "worker")
            self._launch(ticket)

    def _train(self, batch: Batch) -> None:
        version = self.accounts.books.version
        self.accounts.consume(batch)
        if self.plan.faults.rejected and self._rng.random() < self.plan.faults.rejected:
            some = self._rng.sample(batch.ids, self._rng.randint(1, len(batch.ids)))
            self.accounts.reject(dict.fromkeys(some, "simulated"))
            self.accounts.admit(self._order, self._most())
            self._start()
            return
        oldest = min(group.head.number for group in batch.groups)
        self.result.ages.append(version.number - oldest)
        self.result.busy += self.plan.step_seconds
        self._at(self.plan.step_seconds, "trained", "", version)

    def _wait(self, choice: Waiting) -> bool:
        """Start the slack of groups that are due; whether one was helped at once."""
        for group in choice.due:
            if group in self._slack:
                continue
            remedy = self.accounts.attend(group, slack_left=True, can_resume=self.plan.resumes)
            if remedy != "wait":
                return True
            self._slack.add(group)
            self._at(self.plan.slack, "slack", group, self.accounts.books.version)
        return False

    def _cancel_given_up(self) -> None:
        """End rollouts of groups that were given up; their time is in the tally."""
        books = self.accounts.books
        if books.tally.voided != self._voided:
            self._voided = books.tally.voided
            self._running = {t: x for t, x in self._running.items() if books.find(t)}

    def _evaluate(self) -> None:
        every, version = self.plan.evaluate_every, self.accounts.books.version
        if every and version.number % every == 0:
            live = self.accounts.books.live
            if self._evaluation is None or self._evaluation[0] != version:
                self._evaluation = version, self.accounts.evaluation_name(f"{version}"), 0
            _, name, begun = self._evaluation
            tasks = ["task-0", "task-1"]
            admitted = self.accounts.admit_evaluation(name, tasks, 1, begun=begun)
            self._evaluation = version, name, begun + len(admitted)
            if self.accounts.books.live != live:
                self._fail("an evaluation used up room of training")

    def _launch(self, ticket: str) -> None:
        rng = chance(self.plan.seed, *_duration_seed(ticket))
        version = self.accounts.books.version
        self._running[ticket] = (self._now, version)
        takes = draw(self.plan.durations, rng)
        faults = self.plan.faults
        if rng.random() < faults.dropped or takes >= self.plan.watchdog:
            self._at(self.plan.watchdog, "watchdog", ticket, version)
            return
        if rng.random() < faults.late:
            takes += draw("lognormal", rng)
        self._at(takes, "done", ticket, version)

    def _at(self, after: float, kind: _Kind, about: str, version: Version) -> None:
        heapq.heappush(self._events, (self._now + after, next(self._numbers), kind, about, version))

    def _kill_at(self, writes: int) -> None:
        """Kill the process after so many more writes; 0 for never."""
        self.store.crash_at = self.store.writes + writes if writes else None
        self.store.keeps_last = self._rng.random() < 0.5

    def _restart(self) -> None:
        """Restart after a kill: read the journal again, and continue from a checkpoint."""
        faults, rng = self.plan.faults, self._rng
        self.result.crashes += 1
        if rng.random() < faults.power:
            self.store.lose_power()
        self._may_overflow = self._was_changed
        self._slack.clear()
        self._last = LastGroups(self.plan.slack)
        self._events = [event for event in self._events if event[2] in ("done", "watchdog")]
        heapq.heapify(self._events)
        lost = self._unfinished()
        self._running = {t: x for t, x in self._running.items() if rng.random() < faults.adopted}
        self._lost += lost - self._unfinished()
        self._evaluation = None
        if self.accounts.books.is_training:
            new = _next(self.accounts.books.version)
            self._early |= {t: new for t in self._running if rng.random() < self.plan.early}
        self.accounts = self._open(self.store.books())
        if faults.crash_every and self.result.crashes < faults.crashes:
            self._kill_at(faults.crash_every)
        if faults.new_settings and rng.random() < 0.5:
            self._protected(lambda: self._reconfigure(rng.choice(faults.new_settings)))
        self._protected(self._recover)

    def _reconfigure(self, settings: Settings) -> None:
        self._was_changed = self._may_overflow = True
        self.accounts.configure(settings)

    def _recover(self) -> None:
        if self.accounts.books.settings is None:
            self.accounts.configure(self.plan.settings)
        books = self.accounts.books
        restorable = [at for at in self._checkpoints if can_restore(books, at)]
        at = max(restorable, key=lambda at: (at.number, at))
        version = self.accounts.recover(at, lambda ticket, _: ticket in self._running)
        self._checkpoints = [*restorable, version] if version not in restorable else restorable
        self.accounts.readmit(self._tasks)

    def _check(self, *, in_full: bool) -> None:
        books, settings = self.accounts.books, self.accounts.settings
        if broken := self.store.auditor.broken:
            self._fail("; ".join(broken))
        self._may_overflow &= books.live > settings.most_live
        if books.live > settings.most_live and not self._may_overflow:
            self._fail(f"{books.live} groups are live, {settings.most_live} may be")
        if in_full and (wrong := disagreements(books)):
            self._fail("; ".join(wrong))

    def _fail(self, what: str) -> NoReturn:
        raise BrokenPromise(f"{what} (seed {self.plan.seed}, at {self._now:.2f})")


def _next(version: Version) -> Version:
    return Version(version.lineage, version.number + 1)


def _duration_seed(ticket: str) -> tuple[object, ...]:
    """The seed of a rollout's duration: the same for the first try under every rule."""
    group, index, attempt = split_ticket(ticket) or (ticket, 0, 0)
    prompt, _, again = group.rpartition("-")
    return (prompt, str(index)) if again == "0" and not attempt else (group, index, attempt)
