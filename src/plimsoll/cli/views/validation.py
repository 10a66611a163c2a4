"""The output of `plimsoll validate`: progress, closing table, the next command."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from plimsoll.cli.terminal.console import MIN_WIDTH
from plimsoll.cli.views.evaluation import pace, since_resume
from plimsoll.cli.views.text import count, duration, figure, plain
from plimsoll.runs.breaker.diagnosis import remedies
from plimsoll.runs.plan import command_line
from plimsoll.runs.validation.records import Attempt, TaskRecord
from plimsoll.runs.validation.validate_run import Report, ValidateRun

__all__ = ["closing", "progress_line"]


def progress_line(run: ValidateRun) -> str:
    """The progress in one line."""
    results = run.results()
    valid = sum(record.ok for record in results)
    parts = [
        f"{run.tally.trials:,}/{run.total:,} trials",
        f"valid {valid:,}",
        f"quarantined {len(results) - valid:,}",
    ]
    return " · ".join((*parts, *pace(run)))


def closing(run: ValidateRun, report: Report, *, interrupted: bool) -> Iterable[RenderableType]:
    """The table, reasons of quarantined tasks, written files, and the next command."""
    if report.results:
        yield _table(report.results)
    bad = [record for record in report.results if not record.ok]
    if bad:
        yield Text()
        yield Text(f"quarantined on {report.backend} ({len(bad):,}):", style="yellow")
        for record in bad:
            look = run.look(record)
            where = f"  → {look}" if look else ""
            yield Text(f"  {plain(record.task)}  {plain(record.reason or '')}{where}")
        path = shlex.quote(str(run.request.path))
        for remedy in remedies([record.reason or "" for record in bad], path):
            yield Text(f"  remedy: {plain(remedy)}")
    flaky = [record for record in report.results if record.flaky]
    if flaky:
        yield Text()
        yield Text(f"flaky, outcomes differ ({len(flaky):,}):", style="yellow")
        yield from (Text(f"  {plain(one.task)}  {plain(one.flaky or '')}") for one in flaky)
    yield Text()
    if (trip := run.breaker.trip) is not None:
        yield Text(f"stopped by the breaker: {trip.rule} · {plain(trip.message)}", style="yellow")
    if report.not_finished:
        why = "interrupted: " if interrupted else ""
        text = f"{why}{len(report.not_finished):,} of {report.tasks:,} tasks were not finished"
        yield Text(f"{text}; their records are unchanged", style="yellow")
    yield Text(_spent(run, report))
    yield Text(f"wrote: {_short(report.validation)} · {_short(report.quarantine)}")
    yield Text(f"next: {_next(run, report)}")


def _spent(run: ValidateRun, report: Report) -> str:
    return (
        f"{report.valid:,} valid, {report.quarantined:,} quarantined, {report.flaky:,} flaky"
        f" · {count(run.tally.trials, 'trial')}{since_resume(run)} in {duration(run.seconds)}"
    )


def _short(file: str) -> str:
    """A path relative to the current folder, if it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _next(run: ValidateRun, report: Report) -> str:
    """The command that finishes the validation, else the one that runs the valid tasks."""
    request = run.request
    same: dict[str, object] = {
        "--backend": request.backend,
        "--pool": request.pool,
        "--task": request.pattern,
        "--config": request.config,
        "--assets": request.assets,
    }
    if report.not_finished:
        repeat = request.repeat if request.repeat > 1 else None
        return command_line(
            "validate", request.path, same | {"--repeat": repeat, "--out": request.out}
        )
    bad = len(run.loaded.invalid)
    more: dict[str, object] = {
        "--validation": request.out,
        "--validated": True,
        "--skip-invalid": bad > 0,
        "--skip-quarantined": report.quarantined > bad,
    }
    return command_line("eval", request.path, same | more)


def _table(results: Sequence[TaskRecord]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("task", overflow="fold", min_width=MIN_WIDTH)
    for name in ("oracle", "nop", "maximum"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for record in results:
        verdict = Text("valid") if record.ok else Text("quarantined", style="yellow")
        if record.flaky:
            verdict.append(", flaky", style="yellow")
        cells = (_cell(record.oracle), _cell(record.nop), figure(record.maximum))
        table.add_row(plain(record.task), *cells, verdict)
    return table


def _cell(attempts: Sequence[Attempt]) -> str:
    """The rewards of an agent: one, or the lowest and the highest; void if any is."""
    rewards = [one.reward for one in attempts if one.reward is not None]
    if len(rewards) < len(attempts):
        return "void"
    if not rewards:
        return figure(None)
    low, high = min(rewards), max(rewards)
    return figure(low) if low == high else f"{figure(low)} to {figure(high)}"
