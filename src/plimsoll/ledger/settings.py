"""Settings of the ledger's rules. They may change at any resume."""

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from plimsoll.core.errors import UsageError

if TYPE_CHECKING:
    from plimsoll.config.run import RunConfig, WorkersConfig

__all__ = ["MOST_MEMBERS", "GroupPolicy", "Settings", "ledger_settings"]

GroupPolicy = Literal["complete", "min_graded", "void"]
MOST_MEMBERS = 4096
"""Rollouts of a group: it is admitted whole, so all of them are in memory at once."""
_MOST_ROLLOUTS = 1 << 20
"""Rollouts of all live groups: the books hold every one in memory."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The letters are those of the rules in the docs."""

    batch_groups: int
    """B: groups in a batch."""
    max_running: int
    """C: rollouts in flight at once, evaluations included."""
    depth: int = 1
    """τ: batches that may be generated ahead of the trainer."""
    max_staleness: int = 2
    """η: the maximum age of a trained sample, in versions."""
    group_size: int = 8
    """n: rollouts of one prompt that are compared with each other."""
    group_policy: GroupPolicy = "complete"
    """Policy for groups with void members: `complete` replaces them if the task is not to blame,
    `min_graded` makes do with fewer, `void` gives the group up at once."""
    min_graded: int = 1
    """k: the minimum of graded members under the policy `min_graded`."""
    requeues: int = 3
    """R: how often a prompt is requeued after void groups, before its task is excluded."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings under which the rules could not keep their promises."""
        if self.group_policy not in get_args(GroupPolicy):
            raise UsageError(
                f"group_policy is {self.group_policy!r}: choose {', '.join(get_args(GroupPolicy))}"
            )
        least = {
            "batch_groups": 1,
            "max_running": 1,
            "depth": 0,
            "max_staleness": 0,
            "group_size": 1,
            "min_graded": 1,
            "requeues": 0,
        }
        for name, lowest in least.items():
            value = getattr(self, name)
            if value < lowest:
                raise UsageError(f"{name} is {value}; it must be at least {lowest}")
        if self.max_staleness < self.depth:
            raise UsageError(
                f"max_staleness is {self.max_staleness} and depth is {self.depth}: rollouts "
                f"generated {self.depth} batches ahead would be too old to train on; "
                "max_staleness must be at least depth"
            )
        if self.max_running < self.group_size:
            raise UsageError(
                f"max_running is {self.max_running} and group_size is {self.group_size}: "
                "no group could ever run; max_running must be at least group_size"
            )
        if self.group_policy == "min_graded" and self.min_graded > self.group_size:
            raise UsageError(
                f"min_graded is {self.min_graded}, more than group_size, {self.group_size}"
            )
        self._check_memory()

    def _check_memory(self) -> None:
        """Refuse more rollouts than a host has memory for."""
        if self.group_size > MOST_MEMBERS:
            raise UsageError(f"group_size is {self.group_size}; it must be at most {MOST_MEMBERS}")
        alive = self.most_live * self.group_size
        if alive > _MOST_ROLLOUTS:
            raise UsageError(
                f"batch_groups is {self.batch_groups}, depth is {self.depth} and group_size is "
                f"{self.group_size}: (depth + 1) · batch_groups · group_size, the rollouts that "
                f"may be alive at once, is {alive:,}; it must be at most {_MOST_ROLLOUTS:,}"
            )

    @property
    def most_live(self) -> int:
        """(τ + 1)·B: the maximum number of live groups."""
        return (self.depth + 1) * self.batch_groups


def ledger_settings(run: "RunConfig", workers: "WorkersConfig", *, attempts: int = 1) -> Settings:
    """The settings of the ledger's rules. Raises `UsageError` if they contradict each other.

    `attempts` is the number of concurrent trials of a task in an evaluation.
    """
    slots = workers.number * workers.concurrency
    if attempts > MOST_MEMBERS:
        raise UsageError(f"[evaluation] attempts is {attempts}; it must be at most {MOST_MEMBERS}")
    if run.max_running is not None and run.max_running < attempts:
        raise UsageError(
            f"max_running is {run.max_running} and [evaluation] attempts is {attempts}: no "
            "evaluation could ever run; max_running must be at least attempts"
        )
    return Settings(
        batch_groups=run.batch_groups,
        max_running=run.max_running or max(slots, run.group_size, attempts),
        depth=run.depth,
        max_staleness=run.max_staleness,
        group_size=run.group_size,
        group_policy=run.group_policy,
        min_graded=run.min_graded,
        requeues=run.requeues,
        seed=run.seed,
    )
