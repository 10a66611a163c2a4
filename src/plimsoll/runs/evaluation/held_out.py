"""Held-out evaluations of a run: trials of held-out tasks with the current weights.

Their trials are in `heldout/` and `heldout_trials.jsonl`. None of them is in a batch, and the
breaker does not count them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from plimsoll.core.versions import Lineages, Version
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.json_lines import read_lines
from plimsoll.runs.files.results import mean
from plimsoll.runs.scheduling.trial_set import SetOptions, TrialGroup, TrialSet
from plimsoll.tasks.task import Task

__all__ = ["HeldOutResult", "held_out_result", "held_out_set", "read_held_out"]


class HeldOutResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one evaluation: a line of `heldout.jsonl`."""

    name: str
    step: int
    version: str
    """The version of the weights at its start."""
    reward: float | None
    """The mean of the tasks' means; None if no trial is graded."""
    graded: int
    void: dict[str, int]
    """Trials that remain void, by cause. A task without a graded trial has no part in the mean."""
    tasks: dict[str, float | None]
    """The mean of each task's graded trials; None without any."""
    seconds: float


def held_out_set(
    name: str, label: str, tasks: Sequence[Task], attempts: int, directory: RunDirectory
) -> TrialSet:
    """The trial set of an evaluation: one group per task."""
    options = SetOptions(
        folder=lambda group, ticket: directory.evaluated(group.task.name, ticket),
        append=directory.append_evaluated,
        is_watched=False,
    )
    groups = [TrialGroup(task) for task in tasks]
    return TrialSet(name, f"held-out tasks {label}", groups, attempts, options)


def held_out_result(trials: TrialSet, label: str, at: Version, seconds: float) -> HeldOutResult:
    """The result of a finished evaluation."""
    rows = trials.results
    rewards: dict[str, list[float]] = {group.task.name: [] for group in trials.groups}
    for row in rows:
        if row.reward is not None:
            rewards[row.task].append(row.reward)
    tasks = {task: mean(of_task) for task, of_task in rewards.items()}
    return HeldOutResult(
        name=label,
        step=at.number,
        version=str(at),
        reward=mean(one for one in tasks.values() if one is not None),
        graded=sum(row.reward is not None for row in rows),
        void=dict(Counter(row.cause.value for row in rows if row.cause).most_common()),
        tasks=tasks,
        seconds=round(seconds, 3),
    )


def read_held_out(path: Path, lineages: Lineages, now: Version) -> list[HeldOutResult]:
    """The evaluations of versions that the current version descends from, in order.

    Of two with the same version and name, the last counts.
    """
    latest: Mapping[tuple[str, str], HeldOutResult] = {
        (line.version, line.name): line
        for line in read_lines(path, HeldOutResult)
        if lineages.descends(now, Version.parse(line.version))
    }
    return sorted(latest.values(), key=lambda line: line.step)
