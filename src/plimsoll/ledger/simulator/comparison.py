"""Comparison of admission rules: cost and guarantees of each under the same rollouts."""

import functools
from collections.abc import Callable

import msgspec

from plimsoll.ledger.simulator.loops import (
    Counter,
    Fifo,
    Rule,
    Synchronous,
    simulate_loop,
)
from plimsoll.ledger.simulator.scenario import Plan, Run
from plimsoll.ledger.simulator.training import Training

__all__ = ["OURS", "Row", "compare", "rows"]

OURS = "plimsoll"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one rule."""

    policy: str
    time_per_step: float
    max_age: int
    wasted: float
    """The share of generation that was not trained on."""
    duration_bias: float | None
    """Mean duration of trained rollouts over that of all ended ones."""
    idle: float
    """The share of time in which the trainer waited."""


def compare(
    plan: Plan, *, restart: bool = True, progress: Callable[[str, int], None] | None = None
) -> dict[str, Run]:
    """Simulate each rule for the plan's steps, with a restart in the middle of each run."""
    restart_at = plan.steps // 2 if restart else 0
    rules: dict[str, Rule] = {
        "synchronous": Synchronous(),
        "counter": Counter(plan, recovers=False),
        "counter, recovered": Counter(plan, recovers=True),
        "strict fifo": Fifo(),
    }
    runs: dict[str, Run] = {}
    for name, rule in rules.items():
        tell = functools.partial(progress, name) if progress else None
        runs[name] = simulate_loop(plan, rule, restart_at, tell)
    tell = functools.partial(progress, OURS) if progress else None
    runs[OURS] = Training(plan, restart_at=restart_at, progress=tell).run()
    return runs


def rows(runs: dict[str, Run]) -> list[Row]:
    """The figures of each run."""
    return [_row(name, run) for name, run in runs.items()]


def _row(policy: str, run: Run) -> Row:
    return Row(
        policy=policy,
        time_per_step=run.seconds / run.steps,
        max_age=run.max_age,
        wasted=1 - run.trained / run.generated,
        duration_bias=run.duration_bias,
        idle=1 - run.busy / run.seconds,
    )
