"""Training loops with other rules than the ledger's, under the same rollouts.

Each rule decides how many groups to start and which to train on; durations, the trainer and a
restart in mid-run are the same for all.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from plimsoll.ledger.rules.staleness import StalenessManager
from plimsoll.ledger.simulator.scenario import Plan, Run, chance, draw

__all__ = ["Counter", "Fifo", "Loop", "Rule", "Synchronous", "simulate_loop"]


@dataclass(slots=True)
class LoopGroup:
    """A group of a simulated loop."""

    prompt: int
    head: int
    started: float
    seconds: list[float]
    ends: float


@dataclass(slots=True)
class Loop:
    """The state of a loop that its rule may read."""

    plan: Plan
    version: int = 0
    running: dict[int, LoopGroup] = field(default_factory=dict[int, LoopGroup])
    ready: list[LoopGroup] = field(default_factory=list[LoopGroup])
    """Ready groups, in the order in which they became ready."""
    training: list[LoopGroup] = field(default_factory=list[LoopGroup])

    @property
    def live(self) -> int:
        return len(self.running) + len(self.ready) + len(self.training)

    @property
    def seats(self) -> int:
        """Groups that the cap on rollouts leaves room for."""
        settings = self.plan.settings
        return settings.max_running // settings.group_size - len(self.running)


class Rule:
    """Decides what a loop starts and trains on. The base class is synchronous."""

    def room(self, loop: Loop) -> int:
        return 0 if loop.live else min(loop.seats, loop.plan.settings.batch_groups)

    def choose(self, loop: Loop) -> list[LoopGroup]:
        size = loop.plan.settings.batch_groups
        return loop.ready[:size] if len(loop.ready) >= size else []

    def started(self) -> None:
        """Called when a group starts."""

    def accepted(self) -> None:
        """Called when a group becomes ready."""

    def restarted(self, loop: Loop) -> None:
        """Called after a restart of the process; running and buffered groups are lost."""


class Synchronous(Rule):
    """Generate a batch, train on it, generate the next."""


class Counter(Rule):
    """The counter form: capacity from the version and from counters that began at 0."""

    def __init__(self, plan: Plan, *, recovers: bool) -> None:
        settings = plan.settings
        self._recovers = recovers
        self._version = 0
        self._make = lambda: StalenessManager(
            self,
            settings.max_running // settings.group_size,
            settings.batch_groups,
            settings.depth,
        )
        self._manager = self._make()

    def get_version(self) -> int:
        """The version, for the manager."""
        return self._version

    def room(self, loop: Loop) -> int:
        self._version = loop.version
        return self._manager.get_capacity()

    def started(self) -> None:
        self._manager.on_rollout_enqueued()
        self._manager.on_rollout_submitted()

    def accepted(self) -> None:
        self._manager.on_rollout_accepted()

    def restarted(self, loop: Loop) -> None:
        self._manager = self._make()
        if self._recovers:
            self._manager.on_version_recovered(loop.version)


class Fifo(Rule):
    """The ledger's admission, with batches strictly in the order of admission."""

    def room(self, loop: Loop) -> int:
        return min(loop.seats, loop.plan.settings.most_live - loop.live)

    def choose(self, loop: Loop) -> list[LoopGroup]:
        settings = loop.plan.settings
        waiting = sorted([*loop.running.values(), *loop.ready], key=lambda group: group.prompt)
        first = waiting[: settings.batch_groups]
        done = {group.prompt for group in loop.ready}
        whole = len(first) == settings.batch_groups
        return first if whole and all(group.prompt in done for group in first) else []


def simulate_loop(
    plan: Plan, rule: Rule, restart_at: int = 0, progress: Callable[[int], None] | None = None
) -> Run:
    """Run a loop for the plan's steps, with one restart at a version that is not 0."""
    return _Simulation(plan, rule, restart_at, progress).run()


class _Simulation:
    """A running simulation of a loop."""

    def __init__(
        self, plan: Plan, rule: Rule, restart_at: int, progress: Callable[[int], None] | None
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._rule = rule
        self._restart_at = restart_at
        self._loop = Loop(plan)
        self._result = Run()
        self._now = 0.0
        self._prompts = itertools.count()
        self._ends: list[tuple[float, int]] = []
        self._trained_at = math.inf
        self._offered: list[float] = []
        self._trained: list[float] = []

    def run(self) -> Run:
        while self._loop.version < self._plan.steps:
            self._start_groups()
            self._start_training()
            if self._ends and self._ends[0][0] <= self._trained_at:
                self._end_one()
            else:
                self._end_training()
        self._lose_running()
        result = self._result
        result.seconds, result.steps = self._now, self._loop.version
        result.trained = sum(self._trained)
        trained = result.trained / len(self._trained)
        result.duration_bias = trained / (sum(self._offered) / len(self._offered))
        return result

    def _start_groups(self) -> None:
        for _ in range(max(0, self._rule.room(self._loop))):
            prompt = next(self._prompts)
            group = _start(self._plan, prompt, self._loop.version, self._now)
            self._loop.running[prompt] = group
            heapq.heappush(self._ends, (group.ends, prompt))
            self._rule.started()

    def _start_training(self) -> None:
        loop = self._loop
        if loop.training or not (batch := self._rule.choose(loop)):
            return
        chosen = {group.prompt for group in batch}
        loop.ready = [group for group in loop.ready if group.prompt not in chosen]
        loop.training = batch
        self._result.ages.append(max(loop.version - group.head for group in batch))
        self._trained_at = self._now + self._plan.step_seconds
        self._result.busy += self._plan.step_seconds

    def _end_one(self) -> None:
        self._now, prompt = heapq.heappop(self._ends)
        group = self._loop.running.pop(prompt)
        self._loop.ready.append(group)
        self._offered += group.seconds
        self._result.generated += sum(group.seconds)
        self._rule.accepted()

    def _end_training(self) -> None:
        loop = self._loop
        self._now, self._trained_at = self._trained_at, math.inf
        for group in loop.training:
            self._trained += group.seconds
        loop.training = []
        loop.version += 1
        if self._progress is not None:
            self._progress(loop.version)
        if loop.version == self._restart_at:
            self._lose_running()
            loop.running, loop.ready, self._ends = {}, [], []
            self._rule.restarted(loop)

    def _lose_running(self) -> None:
        """Count the generation of groups that did not end."""
        for group in self._loop.running.values():
            ran = self._now - group.started
            self._result.generated += sum(min(one, ran) for one in group.seconds)


def _start(plan: Plan, prompt: int, version: int, now: float) -> LoopGroup:
    size = plan.settings.group_size
    takes = [
        min(plan.watchdog, draw(plan.durations, chance(plan.seed, str(prompt), str(index))))
        for index in range(size)
    ]
    return LoopGroup(prompt, version, now, takes, now + max(takes))
