"""The output of `plimsoll ledger`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plimsoll.cli.terminal.console import MIN_WIDTH, console, print_table
from plimsoll.cli.views.text import command, figure, plain, product
from plimsoll.core.errors import LedgerError
from plimsoll.ledger.report import Report, find_ledger, make_report
from plimsoll.ledger.task_history import GroupHistory, TaskHistory
from plimsoll.runs.audit import audit
from plimsoll.trials.verdicts import Cause

__all__ = ["show"]

SHOWN_TASKS = 12
BAR = 24


def show(run: Path, *, check: bool, task: str | None, as_json: bool) -> int:
    """Print the ledger of a run and return the exit status."""
    find_ledger(run)
    try:
        report = audit(run, task) if check else make_report(run, task=task)
    except LedgerError as error:
        if not check:
            raise
        # An unreadable ledger is a finding of the check.
        _print_problems([str(error)], console(stderr=False), as_json=as_json)
        return 1
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        _print(report, run, console(stderr=False))
    return 1 if report.problems else 0


def _print_problems(problems: list[str], out: Console, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"checked": True, "problems": problems}))
        return
    for problem in problems:
        out.print(Text(f"wrong       {plain(problem)}", style="red"), soft_wrap=True)


def _print(report: Report, run: Path, out: Console) -> None:
    lineage = f" · lineage {report.lineage}" if report.lineage else ""
    out.print(
        f"{product()} · ledger of {run} · version {report.version}{lineage} · "
        f"{report.events:,} events",
        soft_wrap=True,
    )
    for name, text in _lines(report):
        out.print(Text(f"{name:<12}{plain(text)}"), soft_wrap=True)
    if report.history is not None:
        out.print()
        out.print(_groups(report.history))
    elif report.tasks:
        out.print()
        _print_tasks(report.tasks, out)
    out.print()
    if report.checked and not report.problems:
        out.print(
            f"checked     {report.events:,} events: nothing lost, nothing twice, nothing too old"
        )
    _print_problems(report.problems, out, as_json=False)
    if not report.checked:
        out.print(f"see: {command('ledger', run, '--check')} · --task NAME", soft_wrap=True)


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    groups, tally = report.groups, report.tally
    if (rules := report.settings) is not None:
        yield (
            "settings",
            (
                f"B {rules.batch_groups} · C {rules.max_running} · τ {rules.depth} · "
                f"η {rules.max_staleness} · group size {rules.group_size} · "
                f"policy {rules.group_policy} · requeues {rules.requeues}"
            ),
        )
    yield (
        "groups",
        (
            f"admitted {groups.admitted:,} = running {groups.running:,} + buffered "
            f"{groups.buffered:,} + training {groups.training:,} + consumed {groups.consumed:,} + "
            f"void {groups.voided:,}"
        ),
    )
    yield "prompts", f"{report.prompts_begun:,} begun · {report.prompts_pending:,} requeued"
    yield (
        "rollouts",
        (
            f"{report.rollouts_in_flight:,} in flight · {tally.graded:,} graded · "
            f"{tally.trained:,} trained on · {tally.withheld:,} withheld"
        ),
    )
    bias = "–" if report.duration_bias is None else f"{report.duration_bias:.3f}"
    yield "duration", f"bias {bias}: mean of trained rollouts ÷ mean of all offered rollouts"
    bound = f" (≤ {rules.max_staleness})" if rules is not None else ""
    yield from _histogram(f"head{bound}", "ages", tally.head_ages)
    yield from _histogram(f"oldest token{bound}", "", tally.token_ages)
    if tally.groups_by_cause or tally.tickets_by_cause:
        yield (
            "void",
            f"groups: {_by(tally.groups_by_cause)} · rollouts: {_by(tally.tickets_by_cause)}",
        )
    if tally.dead_lineage:
        yield "", f"{tally.dead_lineage:,} of them from abandoned lineages"
    if tally.ignored:
        yield "ignored", f"{_by(tally.ignored)}: out of date, without effect"
    if report.evaluations_in_flight or tally.evaluated:
        yield (
            "evaluations",
            f"{report.evaluations_in_flight:,} in flight · {tally.evaluated:,} done",
        )
    if report.rollbacks:
        yield "rollbacks", f"{report.rollbacks:,}"
    for made in report.checkpoints:
        yield "checkpoint", f"{made.name} · version {made.version} · event {made.position:,}"
    for task, why in report.quarantined.items():
        yield "excluded", f"{task}: {why}"


def _histogram(what: str, name: str, counts: Mapping[int, int]) -> Iterator[tuple[str, str]]:
    """A bar for each age, under a heading."""
    if not counts:
        return
    yield name, f"of the {what}, by trained rollouts"
    most = max(counts.values())
    for age, number in sorted(counts.items()):
        yield "", f"{age:>4} {'█' * max(1, round(BAR * number / most))} {number:,}"


def _by(counts: Mapping[Cause, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items()) or "none"


def _print_tasks(tasks: list[TaskHistory], out: Console) -> None:
    """Print tasks, those with the most void rollouts first."""
    ordered = sorted(tasks, key=lambda task: (-sum(task.void.values()), task.task))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("task", overflow="fold", min_width=MIN_WIDTH)
    for head in ("groups", "trained", "graded", "mean"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("void", overflow="fold", min_width=MIN_WIDTH)
    for task in ordered[:SHOWN_TASKS]:
        table.add_row(
            plain(task.task),
            f"{task.groups:,}",
            f"{task.trained:,}",
            f"{task.graded:,}",
            figure(task.mean_reward),
            _by(task.void) if task.void else "",
        )
    print_table(out, table)
    if len(tasks) > SHOWN_TASKS:
        out.print(f"… and {len(tasks) - SHOWN_TASKS:,} more: see --json")


def _groups(history: list[GroupHistory]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("group", "prompt", "admitted at", "rewards", "void", "outcome"):
        table.add_column(head, overflow="fold")
    for group in history:
        table.add_row(
            plain(group.group),
            f"{group.prompt:,}" + (" (evaluation)" if group.evaluation else ""),
            group.admitted,
            " ".join(figure(reward) for reward in group.rewards),
            ", ".join(group.void),
            group.outcome,
        )
    return table
