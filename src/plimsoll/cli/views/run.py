"""What is said at the end of a run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from plimsoll.cli.views.evaluation import (
    count,
    diagnosed,
    duration,
    figure,
    plain,
    pool_line,
)
from plimsoll.cli.views.status import voids
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.status import RunSummary

__all__ = ["closing"]


def closing(
    summary: RunSummary, measured: Sequence[HeldOutResult], weights: Path | None = None
) -> Iterator[Text]:
    """How it ended, what came of it, what was not done, where to look.

    `measured` are the evaluations of the run, in their order, `weights` the folder that servers
    read the last version from.
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
        yield Text(f"out: {plain(task)}: {plain(why)}", style="yellow")
    for why, skipped in summary.skipped.items():
        yield Text(f"{count(skipped, 'step')} changed nothing: {plain(why)}")
    if summary.pool is not None:
        yield Text(pool_line(summary.pool))
    if summary.left_over:
        yield Text(f"left over: {count(summary.left_over, 'group')}, too few for a batch")
    yield _proof(summary)
    if weights is not None:
        yield Text(
            f"the last weights stay in {weights} for the servers: remove {weights.parent} when "
            "none of them needs it"
        )
    again = "" if summary.done else f" · go on: plimsoll resume {summary.path}"
    directory = RunDirectory(Path(summary.path))
    # On a disk that is full neither could be written.
    files = (file for file in (directory.picture, directory.summary) if file.exists())
    shown = next(files, directory.path)
    yield Text(f"look: {shown} · plimsoll ledger {summary.path}{again}")


def _held_out(measured: Sequence[HeldOutResult]) -> Text:
    """The first and the last time that held-out tasks were tried."""
    ends = [measured[0], *measured[1:][-1:]]
    rewards = " → ".join(figure(one.reward) for one in ends)
    graded = " → ".join(f"{one.graded:,}" for one in ends)
    void = " → ".join(voids(one.void) for one in ends) if any(one.void for one in ends) else ""
    return Text(
        f"held-out reward {rewards} · graded {graded}" + (f" · void {void}" if void else "")
    )


def _proof(summary: RunSummary) -> Text:
    if summary.problems is None:
        return Text(f"the ledger was not checked: plimsoll ledger {summary.path} --check does it")
    if summary.problems:
        return Text(f"the ledger is wrong: {'; '.join(summary.problems)}", style="red")
    age = count(summary.max_age, "version")
    return Text(
        f"nothing lost, nothing twice (ledger checked) · oldest sample in a batch: {age} old"
    )
