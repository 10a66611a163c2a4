"""The first and the last lines of a run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from plimsoll.cli.terminal.console import Screen
from plimsoll.cli.views.evaluation import diagnosed, print_unknown_keys
from plimsoll.cli.views.pool import pool_line
from plimsoll.cli.views.status import voids
from plimsoll.cli.views.text import command, count, duration, figure, plain, product
from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.status import RunSummary
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.task_sets import TaskSet
from plimsoll.workers.worker.backends import BACKENDS

__all__ = ["closing", "print_begin", "print_plan"]


def closing(
    summary: RunSummary, measured: Sequence[HeldOutResult], weights: Path | None = None
) -> Iterator[Text]:
    """The end of a run: reason, results, skipped work, and files to look at.

    `measured` are the held-out evaluations in order. `weights` is the folder from which servers
    read the last version.
    """
    style = "" if summary.done else "yellow"
    steps, trials = count(summary.steps, "step"), count(summary.trials, "trial")
    yield Text(
        f"{summary.ended} · {steps}, {trials} in {duration(summary.seconds)} · "
        f"reward {figure(summary.reward)} · void {voids(summary.void)}",
        style=style,
    )
    if measured:
        yield _held_out(measured)
    if summary.breaker is not None:
        yield from diagnosed(summary.breaker)
    for task, why in summary.out.items():
        yield Text(_excluded(task, why), style="yellow")
    for why, skipped in summary.skipped.items():
        yield Text(f"{count(skipped, 'step')} without an update: {plain(why)}")
    if summary.pool is not None:
        yield Text(pool_line(summary.pool))
    if summary.left_over:
        yield Text(f"left over: {count(summary.left_over, 'group')}, too few for a batch")
    yield _proof(summary)
    if weights is not None:
        yield Text(
            f"the last weights stay in {weights} for the servers; remove {weights.parent} when "
            "they no longer need it"
        )
    again = "" if summary.done else f" · continue: {command('resume', summary.path)}"
    directory = RunDirectory(Path(summary.path))
    # On a full disk neither could be written.
    files = (file for file in (directory.picture, directory.summary) if file.exists())
    shown = next(files, directory.path)
    yield Text(f"see: {shown} · {command('ledger', summary.path)}{again}")


def _excluded(task: str, why: str) -> str:
    """A task that is not rolled out, quarantined or excluded, with the reason."""
    reason = why.removeprefix("quarantined: ")
    return plain(f"{'excluded' if reason == why else 'quarantined'}: {task}: {reason}")


def _held_out(measured: Sequence[HeldOutResult]) -> Text:
    """The first and the last held-out evaluation."""
    ends = [measured[0], *measured[1:][-1:]]
    rewards = " → ".join(figure(one.reward) for one in ends)
    graded = " → ".join(f"{one.graded:,}" for one in ends)
    void = " → ".join(voids(one.void) for one in ends) if any(one.void for one in ends) else ""
    return Text(
        f"held-out reward {rewards} · graded {graded}" + (f" · void {void}" if void else "")
    )


def _proof(summary: RunSummary) -> Text:
    if summary.problems is None:
        check = command("ledger", summary.path, "--check")
        return Text(f"the ledger was not checked; run: {check}")
    if summary.problems:
        return Text(f"the ledger is wrong: {'; '.join(summary.problems)}", style="red")
    age = count(summary.max_age, "version")
    return Text(
        f"nothing lost, nothing twice (ledger checked) · oldest sample in a batch: {age} old"
    )


def print_begin(rollouts: Rollouts, screen: Screen) -> None:
    """Print the validation of the tasks, and the work that a killed run repeats."""
    plan = rollouts.plan
    if rollouts.location.is_elsewhere:
        text = f"{'ledger':<12}{rollouts.location.description}"
        screen.out.print(Text(plain(text)), soft_wrap=True)
    if plan.config.run.validates:
        _print_validated("tasks", plan.trained, screen)
        if plan.held_out.tasks:
            _print_validated("held-out", plan.held_out, screen)
    if lost := rollouts.restored.lost:
        text = f"running again: {count(lost, 'trial')} that were running when the run was killed"
        screen.err.print(Text(text), soft_wrap=True)
    if undone := _undone(rollouts):
        screen.err.print(Text(undone), soft_wrap=True)


def _undone(rollouts: Rollouts) -> str:
    """The steps of an earlier process that are repeated."""
    at, checkpoint = rollouts.version.number, rollouts.checkpoint
    last = rollouts.restored.last_step
    if last <= at:
        return ""
    steps = f"step {last:,} is" if last == at + 1 else f"steps {at + 1:,} to {last:,} are"
    where = ""
    if rollouts.plan.config.training.policy is not None:
        name = "no checkpoint yet" if checkpoint is None else f"checkpoint {checkpoint.name}"
        where = f" ({name})"
    return f"resuming from step {at:,}{where}: {steps} repeated"


def _print_validated(what: str, tasks: TaskSet, screen: Screen) -> None:
    out = f" · {len(tasks.left_out):,} quarantined" if tasks.left_out else ""
    text = (
        f"{what:<12}{len(tasks.tasks):,} loaded · {len(tasks.admitted):,} validated "
        f"(the oracle gets the full reward, nop does not){out}"
    )
    screen.out.print(Text(text), soft_wrap=True)
    for name, why in tasks.left_out.items():
        text = f"{'':<12}{plain(name)}: {plain(why)}"
        screen.out.print(Text(text, style="yellow"), soft_wrap=True)


def print_plan(plan: Plan, screen: Screen, policy: str | None) -> None:
    """Print the plan of a run, and the tasks that are left out."""
    out, err = screen.out, screen.err
    run, workers = plan.config.run, plan.config.workers
    tasks = len(plan.trained.admitted)
    extent = count(run.epochs or 0, "epoch") if run.steps is None else count(run.steps, "step")
    parts = [
        product(),
        BACKENDS[run.backend],
        f"agent {run.agent}",
        *([policy] if policy is not None else []),
        count(tasks, "task"),
        f"{extent} of {run.batch_groups} × {run.group_size} trials",
        f"{workers.number} × {workers.concurrency} at once ({workers.engine})",
    ]
    out.print(Text(" · ".join(parts)), soft_wrap=True)
    # If tasks are validated first, `print_begin` lists those left out.
    for name, why in () if run.validates else plan.left_out.items():
        err.print(Text(f"not run: {plain(name)}: {plain(why)}", style="yellow"), soft_wrap=True)
    print_unknown_keys(plan.unknown_keys, err)
