"""The rules side by side: what each costs and what each keeps, under the same rollouts."""

import msgspec

from plimsoll.ledger.sim.loops import Counter, Fifo, Rule, Synchronous, simulate_loop
from plimsoll.ledger.sim.training import Plan, Run, Training

__all__ = ["OURS", "Row", "compare"]

OURS = "plimsoll"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's figures."""

    policy: str
    time_per_step: float
    max_age: int
    wasted: float
    """The share of generation that was not trained on."""
    duration_bias: float | None
    """Mean duration of what was trained on over that of what ended."""
    idle: float
    """The share of time in which the trainer waited."""


def compare(plan: Plan, *, restart: bool = True) -> list[Row]:
    """Simulate each rule for the plan's steps, with a restart in the middle of each run."""
    restart_at = plan.steps // 2 if restart else 0
    rules: dict[str, Rule] = {
        "synchronous": Synchronous(),
        "counter": Counter(recovers=False),
        "counter, recovered": Counter(recovers=True),
        "strict fifo": Fifo(),
    }
    rows = [_row(name, simulate_loop(plan, rule, restart_at)) for name, rule in rules.items()]
    return [*rows, _row(OURS, Training(plan, restart_at=restart_at).run())]


def _row(policy: str, run: Run) -> Row:
    return Row(
        policy=policy,
        time_per_step=run.seconds / run.steps,
        max_age=run.max_age,
        wasted=1 - run.trained / run.generated,
        duration_bias=run.duration_bias,
        idle=1 - run.busy / run.seconds,
    )
