"""The output of `plimsoll simulate`: a table and a plot."""

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from plimsoll.cli.terminal.console import console, print_table
from plimsoll.cli.views.text import product
from plimsoll.core.errors import UsageError
from plimsoll.ledger.simulator.comparison import Row, compare, rows
from plimsoll.ledger.simulator.plot import draw
from plimsoll.ledger.simulator.scenario import DURATIONS, Plan, Run

__all__ = ["show"]


def show(plan: Plan, *, restart: bool, as_json: bool, plot: Path | None) -> int:
    """Simulate, print the table, draw the plot, and return the exit status."""
    runs = _simulate(plan, console(stderr=True), restart=restart)
    made = rows(runs)
    if plot is not None:
        _write(plot, draw(runs, plan))
    if as_json:
        click.echo(msgspec.json.encode(made))
        return 0
    out = console(stderr=False)
    out.print(_first_line(plan, restart=restart), soft_wrap=True)
    print_table(out, _table(made))
    out.print(f"max age: η = {plan.settings.max_staleness} is allowed")
    if plot is not None:
        out.print(f"see: {plot}", soft_wrap=True)
    return 0


def _simulate(plan: Plan, err: Console, *, restart: bool) -> dict[str, Run]:
    """Simulate, with a progress bar for each rule on a terminal."""
    if not err.is_terminal:
        return compare(plan, restart=restart)
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        bars = dict[str, int]()

        def advance(rule: str, step: int) -> None:
            if rule not in bars:
                bars[rule] = progress.add_task(rule, total=plan.steps)
            progress.update(progress.task_ids[bars[rule]], completed=step)

        return compare(plan, restart=restart, progress=advance)


def _first_line(plan: Plan, *, restart: bool) -> str:
    rules = plan.settings
    again = f", a restart after {plan.steps // 2:,}" if restart else ""
    return (
        f"{product()} · simulated · rollouts: {DURATIONS[plan.durations]} · "
        f"B {rules.batch_groups} · C {rules.max_running} · τ {rules.depth} · "
        f"η {rules.max_staleness} · group size {rules.group_size} · "
        f"a step takes {plan.step_seconds:g} · slack {plan.slack:g} · {plan.steps:,} steps{again}"
    )


def _table(made: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("policy", no_wrap=True)
    for head in ("time per step", "max age", "wasted", "duration bias", "trainer idle"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in made:
        table.add_row(
            row.policy,
            f"{row.time_per_step:.2f}",
            f"{row.max_age}",
            f"{row.wasted:.0%}",
            "–" if row.duration_bias is None else f"{row.duration_bias:.2f}",
            f"{row.idle:.0%}",
        )
    return table


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
