"""Runs that only roll out, and the first line of any run.

Begins a run, or goes on with one: with training where its config names a policy to train.
"""

import os
from pathlib import Path

import msgspec
from rich.text import Text

from plimsoll import __version__
from plimsoll.cli.terminal.evaluation import warn_of_unknown_keys
from plimsoll.cli.terminal.foreground import Screen, run_in_foreground
from plimsoll.cli.views.evaluation import count, plain
from plimsoll.config.file import load_config
from plimsoll.runs.backends import BACKENDS
from plimsoll.runs.evaluation.held_out_schedule import HeldOutSchedule
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.status import Step
from plimsoll.runs.task_sets import TaskSet
from plimsoll.training.requirements import check_installed

__all__ = ["RolloutRun", "say_begun", "say_plan", "start_run"]


class RolloutRun:
    """Rolls out batch after batch, and trains on none."""

    lingers = False
    weights = None

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts: Rollouts | None = rollouts

    @property
    def doing(self) -> str:
        return "" if self.rollouts is None else self.rollouts.doing

    async def run(self, screen: Screen) -> None:
        rollouts = self.rollouts
        assert rollouts is not None
        policy = rollouts.plan.policy
        say_plan(rollouts.plan, screen, None if policy is None else f"policy {policy.urls[0]}")
        async with rollouts:
            say_begun(rollouts, screen)
            measuring = HeldOutSchedule(rollouts)
            await measuring.if_due()
            async for batch in rollouts.batches():
                await rollouts.commit(batch)
                await measuring.if_due()
            await measuring.at_end()


def say_begun(rollouts: Rollouts, screen: Screen) -> None:
    """What was found out about the tasks, and what a run that was killed left behind."""
    plan = rollouts.plan
    if rollouts.location.is_elsewhere:
        said = f"{'ledger':<12}{rollouts.location.said}"
        screen.out.print(Text(plain(said)), soft_wrap=True)
    if plan.config.run.validates:
        screen.out.print(Text(_validated("tasks", plan.trained)), soft_wrap=True)
        if plan.held_out.tasks:
            screen.out.print(Text(_validated("held-out", plan.held_out)), soft_wrap=True)
        for name, why in plan.left_out.items():
            said = f"{'':<12}{plain(name)}: {plain(why)}"
            screen.out.print(Text(said, style="yellow"), soft_wrap=True)
    if lost := rollouts.restored.lost:
        said = f"{count(lost, 'trial')} ran when the run was killed: tried again"
        screen.err.print(Text(said), soft_wrap=True)
    if undone := _undone(rollouts):
        screen.err.print(Text(undone), soft_wrap=True)


def _undone(rollouts: Rollouts) -> str:
    """Which steps of an earlier life are made again."""
    at, checkpoint = rollouts.version.number, rollouts.checkpoint
    last = _last_step(rollouts.directory.steps)
    if last <= at:
        return ""
    steps = f"step {last:,} is" if last == at + 1 else f"steps {at + 1:,} to {last:,} are"
    where = ""
    if rollouts.plan.config.training.policy is not None:
        told = "no checkpoint yet" if checkpoint is None else f"checkpoint {checkpoint.name}"
        where = f" ({told})"
    return f"goes on from step {at:,}{where}: {steps} made again"


def _last_step(file: Path) -> int:
    """The step of the last line that an earlier life has written; 0 where there is none."""
    try:
        *_, last = file.read_bytes().splitlines()
        return msgspec.json.decode(last, type=Step).step
    except (OSError, ValueError):  # none, or none that can be read
        return 0


def _validated(what: str, tasks: TaskSet) -> str:
    out = f" · {len(tasks.left_out):,} quarantined" if tasks.left_out else ""
    return (
        f"{what:<12}{len(tasks.tasks):,} loaded · {len(tasks.admitted):,} validated "
        f"(the oracle gets all, nop does not){out}"
    )


def say_plan(plan: Plan, screen: Screen, policy: str | None) -> None:
    """What is going to be done, and what is not."""
    out, err = screen.out, screen.err
    run, workers = plan.config.run, plan.config.workers
    version = ".".join(__version__.split(".")[:2])
    tasks = len(plan.trained.admitted)
    epochs = count(run.epochs or 0, "epoch")
    long = epochs if run.steps is None else count(run.steps, "step")
    parts = [
        f"plimsoll {version}",
        BACKENDS[run.backend],
        f"agent {run.agent}",
        *([policy] if policy is not None else []),
        count(tasks, "task"),
        f"{long} of {run.batch_groups} × {run.group_size} trials",
        f"{workers.number} × {workers.concurrency} at once ({workers.engine})",
    ]
    out.print(Text(" · ".join(parts)), soft_wrap=True)
    # Where they are validated first, more is known of them then.
    for name, why in () if run.validates else plan.left_out.items():
        err.print(Text(f"not run: {plain(name)}: {plain(why)}", style="yellow"), soft_wrap=True)
    warn_of_unknown_keys(plan.unknown_keys, err)


def start_run(config: Path, *, out: Path | None, keep_going: bool, as_json: bool) -> int:
    """Run what a config says and return the exit status."""
    if load_config(config).training.policy is None:
        rollouts = Rollouts(config, out=out, trains=False, keep_going=keep_going)
        return run_in_foreground(RolloutRun(rollouts), as_json=as_json)
    check_installed()
    # Imported here: a run that trains nothing needs no torch.
    from plimsoll.cli.terminal.training_run import TrainingRun, follow

    if int(os.environ.get("RANK", "0")):
        return follow(config)
    return run_in_foreground(TrainingRun(config, out=out, keep_going=keep_going), as_json=as_json)
