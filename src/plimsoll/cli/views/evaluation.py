"""The output of an evaluation: first line, progress, closing table.

Without a graded trial there is a dash instead of a mean.
"""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plimsoll.cli.terminal.console import MIN_WIDTH
from plimsoll.cli.views.pool import pool_line
from plimsoll.cli.views.text import NONE, command, count, duration, figure, plain, product
from plimsoll.ledger.journal.location import has_ledger
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.evaluation.trial_run import TrialSetRun
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Diagnosis, Summary, Tally
from plimsoll.tasks.problems import UnknownKey
from plimsoll.trials.verdicts import CAUSES, Cause

__all__ = [
    "closing",
    "diagnosed",
    "first_line",
    "live",
    "pace",
    "print_unknown_keys",
    "progress_line",
    "since_resume",
]

SHOWN_RUNNING = 12
SHOWN_UNKNOWN_KEYS = 10


def first_line(backend: str, doing: str, tasks: int, attempts: int) -> Text:
    return Text(f"{product()} · {backend} · {doing} · {count(tasks, 'task')} × {attempts}")


def print_unknown_keys(keys: Sequence[UnknownKey], err: Console) -> None:
    """Print a warning for each of the first unknown keys, and the number of others."""
    for key in keys[:SHOWN_UNKNOWN_KEYS]:
        err.print(Text(f"warning: {plain(key.describe())}", style="yellow"), soft_wrap=True)
    if (more := len(keys) - SHOWN_UNKNOWN_KEYS) > 0:
        err.print(Text(f"warning: and {count(more, 'more unknown key')}", style="yellow"))


def progress_line(evaluation: TrialSetRun) -> str:
    """The progress in one line."""
    tally = evaluation.tally
    parts = [f"{tally.trials:,}/{evaluation.total:,} trials", f"graded {tally.graded:,}"]
    if tally.mean_reward is not None:
        parts.append(f"mean {figure(tally.mean_reward)}")
    parts.append(f"void {_causes(tally.void)}")
    return " · ".join((*parts, *pace(evaluation)))


def pace(evaluation: TrialSetRun) -> Iterable[str]:
    """The rate and the remaining time; nothing before the first trial."""
    done, seconds = evaluation.tally.trials, evaluation.seconds
    new = done - evaluation.earlier
    if not new or seconds <= 0:
        return
    yield f"{60 * new / seconds:.0f} trials/min"
    left = (evaluation.total - done) * seconds / new
    if left > 0:
        yield f"{duration(left)} left"


def live(evaluation: TrialSetRun, line: str) -> RenderableType:
    """The progress bar, the progress line, and the running trials, longest first."""
    running = evaluation.running
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    for one in running[:SHOWN_RUNNING]:
        table.add_row(plain(one.label), one.phase, duration(one.seconds))
    if len(running) > SHOWN_RUNNING:
        table.add_row(f"… and {len(running) - SHOWN_RUNNING} more", "", "")
    return Group(_bar(evaluation), Text(line), table)


def _bar(evaluation: TrialSetRun) -> Table:
    """The progress bar on its own line."""
    line = Table.grid()
    line.add_row(
        ProgressBar(
            total=evaluation.total,
            completed=evaluation.tally.trials,
            width=40,
            style="dim",
            complete_style="default",
            finished_style="default",
        )
    )
    return line


def closing(
    evaluation: TrialSetRun,
    summary: Summary,
    *,
    invalid: Sequence[str],
    left_out: Mapping[str, str],
    interrupted: bool,
) -> Iterable[RenderableType]:
    """The end of an evaluation: the table, reasons of void trials, files to look at.

    `invalid` are the problems of invalid tasks; `left_out` names quarantined tasks with the reason.
    """
    tally, directory = evaluation.tally, evaluation.directory
    if tally.trials:
        yield _table(tally)
        for cause in tally.void:
            yield Text()
            yield from _void_lines(tally, Cause(cause), directory)
    if invalid:
        yield Text()
        yield Text(f"not run, invalid ({count(len(invalid), 'problem')}):", style="yellow")
        yield from (Text(f"  {plain(problem)}") for problem in invalid)
    if left_out:
        yield Text()
        yield Text(f"not run, quarantined ({len(left_out):,}):", style="yellow")
        yield from (Text(f"  {plain(name)}  {plain(why)}") for name, why in left_out.items())
    yield Text()
    if summary.breaker is not None:
        yield from diagnosed(summary.breaker)
        yield Text()
    if evaluation.canaries is not None:
        yield Text(_canaries(evaluation.canaries))
    if summary.pool is not None:
        yield Text(pool_line(summary.pool))
    if (usage := _policy_usage(summary)) is not None:
        yield Text(usage)
    yield Text(_spent(evaluation, interrupted), style="yellow" if interrupted else "")
    if directory.summary.exists():
        yield Text(f"see: {_see(tally, directory)}")


def diagnosed(diagnosis: Diagnosis) -> Iterable[Text]:
    """The reason why the breaker tripped, the remedy, and the next command."""
    did = "stopped by the breaker" if diagnosis.stopped else "breaker tripped (--keep-going)"
    yield Text(f"{did}: {diagnosis.rule} · {plain(diagnosis.said)}", style="yellow")
    example = [f"e.g. {diagnosis.look}"] if diagnosis.look else []
    parts = (
        ("evidence", [*diagnosis.evidence, *example]),
        ("remedy", diagnosis.remedies),
        ("next", diagnosis.go_on),
    )
    for head, lines in parts:
        for number, line in enumerate(lines):
            yield Text(f"  {'' if number else head:<10} {plain(line)}")


def _canaries(canaries: Canaries) -> str:
    run = canaries.good + canaries.failed
    if not run:
        return f"canaries: none yet, one in {canaries.every:,} trials, of a solvable task"
    return f"canaries: {canaries.good:,} of {run:,} good, one in {canaries.every:,} trials"


def _policy_usage(summary: Summary) -> str | None:
    """Turns and tokens of the policy; None for an agent without a policy."""
    if summary.turns is None:
        return None
    prompts, answers = summary.prompt_tokens or 0, summary.answer_tokens or 0
    turns = count(summary.turns, "turn")
    return f"policy: {turns} · tokens: prompts {prompts:,}, answers {answers:,}"


def _table(tally: Tally) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("task", overflow="fold", min_width=MIN_WIDTH)
    table.add_column("graded", justify="right", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("void", overflow="fold", min_width=MIN_WIDTH)
    tasks = tally.by_task()
    for name, of_task in tasks.items():
        table.add_row(plain(name), *_cells(of_task))
    if len(tasks) > 1:
        table.add_row(f"all {len(tasks):,} tasks", *_cells(tally), style="bold")
    return table


def _cells(tally: Tally) -> tuple[Text, Text, Text]:
    """Graded, mean and void of a tally; void trials are yellow."""
    return (
        Text(f"{tally.graded:,}/{tally.trials:,}"),
        Text(figure(tally.mean_reward)),
        Text(_causes(tally.void), style="yellow" if tally.void else ""),
    )


def _void_lines(tally: Tally, cause: Cause, directory: RunDirectory) -> Iterable[Text]:
    rule = CAUSES[cause]
    yield Text(f"void: {cause} · {rule.meaning}", style="yellow")
    for name, of_task in tally.by_task().items():
        rows = [row for row in of_task.rows if row.cause is cause]
        if rows:
            share = f"{len(rows):,} of {of_task.trials:,}"
            where = directory.folder_of(rows[0])
            yield Text(f"  {plain(name)} ({share})  {plain(rows[0].reason or '')}  → {where}")
    yield Text(f"  remedy: {rule.remedy}")


def _spent(evaluation: TrialSetRun, interrupted: bool) -> str:
    done, total, seconds = evaluation.tally.trials, evaluation.total, evaluation.seconds
    if interrupted:
        return (
            f"interrupted after {duration(seconds)}: {done:,} of {total:,} trials finished "
            f"and are kept; the others do not count{_resume(evaluation.directory)}"
        )
    new = done - evaluation.earlier
    rate = 60 * new / seconds if seconds > 0 else 0.0
    resumed = since_resume(evaluation)
    if done < total:
        return (
            f"{done:,} of {total:,} trials{resumed} in {duration(seconds)}; the others were not run"
            f"{_resume(evaluation.directory)}"
        )
    return f"{count(done, 'trial')}{resumed} in {duration(seconds)} · {rate:,.0f} trials/min"


def since_resume(evaluation: TrialSetRun) -> str:
    """The trials that the time covers, if earlier processes have run others."""
    new = evaluation.tally.trials - evaluation.earlier
    return f", {new:,} since the resume," if evaluation.earlier else ""


def _resume(directory: RunDirectory) -> str:
    """The command that continues; empty if nothing was started, which leaves no ledger."""
    if not has_ledger(directory.path):
        return ""
    return f" · continue: {command('resume', directory.path)}"


def _see(tally: Tally, directory: RunDirectory) -> str:
    """The summary and one trial, a void one if there is any."""
    rows = sorted(tally.rows, key=lambda row: row.cause is None)
    if not rows:
        return str(directory.summary)
    return f"{directory.summary} · {command('show', directory.folder_of(rows[0]))}"


def _causes(void: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {count:,}" for cause, count in void.items()) or NONE
