"""The status of a run: a line, its last steps and its workers in tables."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec
from rich.table import Table
from rich.text import Text

from plimsoll.cli.terminal.console import console, print_table
from plimsoll.cli.views.pool import pool_line
from plimsoll.cli.views.text import NONE, command, duration, figure, plain, product
from plimsoll.runs.controller_process import controller
from plimsoll.runs.evaluation.requests import can_resume
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.status import Status, reached_end, read_status
from plimsoll.runs.files.steps import Step, StepReport, last_steps
from plimsoll.sandboxes.host.owners import host_name
from plimsoll.workers.controller.roster import WorkerStatus

__all__ = ["progress_line", "show", "steps_table", "voids"]

BARS = "▁▂▃▄▅▆▇█"
SHOWN_BARS = 24


def show(directory: RunDirectory, *, as_json: bool) -> int:
    """Print the status of a run and return the exit status."""
    status = read_status(directory.status)
    owner = controller(directory)
    if owner is None and status.state != "ended":
        status = msgspec.structs.replace(status, state="killed", workers=[], workers_wait="")
    if as_json:
        click.echo(msgspec.json.encode(status))
        return 0
    out = console(stderr=False)
    where = "" if owner is None else f" · pid {owner.pid} on {host_name(owner)}"
    out.print(f"{product()} · run {directory.path} · {status.state}{where}", soft_wrap=True)
    for name, text in _lines(status):
        out.print(Text(f"{name:<12}{plain(text)}"), soft_wrap=True)
    for table in (
        steps_table(directory.steps, status.step, status.heldout),
        _workers(status.workers) if status.workers else None,
    ):
        if table is not None:
            out.print()
            print_table(out, table)
    out.print()
    out.print(Text(_see(directory, is_alive=owner is not None, status=status)), soft_wrap=True)
    return 0


def progress_line(status: Status) -> str:
    """The progress in one line."""
    if status.total is not None:
        return _trials_line(status)
    of = "" if status.steps is None else f"/{status.steps}"
    last = status.rewards[-1] if status.rewards else None
    parts = [
        f"step {status.step}{of}",
        " ".join(filter(None, ("reward", bars(status.rewards), figure(last)))),
        f"age {status.age} (≤ {status.max_staleness})",
        f"void {voids(status.void)}",
        f"{status.trials_per_second:.1f} trials/s",
    ]
    waits = [status.workers_wait] if status.workers_wait else []
    return "   ".join((*parts, *_left(status), *waits))


def _trials_line(status: Status) -> str:
    """The progress of an evaluation."""
    parts = [
        f"{status.trials:,}/{status.total:,} trials",
        f"mean {figure(status.mean_reward)}",
        f"void {voids(status.void)}",
        f"{status.trials_per_second:.1f} trials/s",
    ]
    return "   ".join((*parts, *([status.workers_wait] if status.workers_wait else [])))


def voids(void: Mapping[str, int]) -> str:
    """The number of void trials, by cause."""
    if not void:
        return "0"
    causes = ", ".join(f"{cause} {count:,}" for cause, count in void.items())
    return f"{sum(void.values()):,} ({causes})"


def bars(rewards: Sequence[float | None]) -> str:
    """The last rewards as bars, scaled from the lowest to the highest."""
    shown = rewards[-SHOWN_BARS:]
    known = [reward for reward in shown if reward is not None]
    if len(known) < 2:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(BARS) - 1
    return "".join(
        " " if reward is None else BARS[round(top * (reward - low) / span) if span else top // 2]
        for reward in shown
    )


def _left(status: Status) -> Iterator[str]:
    """The remaining time, if it can be estimated from the trials of this process."""
    done = len([r for r in status.rewards if r is not None])
    if status.steps is None or not status.step or not done or status.state != "running":
        return
    per_step = status.trials / status.step
    if status.trials_per_second > 0 and (left := status.steps - status.step) > 0:
        yield f"{duration(left * per_step / status.trials_per_second)} left"


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    ago = duration(max(0.0, time.time() - status.at))
    yield "progress", progress_line(status)
    yield "as of", f"{ago} ago · running for {duration(status.seconds)}"
    if status.why:
        yield "ended", status.why
    yield (
        "trials",
        (
            f"{status.trials:,}: graded {status.graded:,}, void {voids(status.void)} · "
            f"{status.running:,} running, {status.waiting:,} waiting"
        ),
    )
    if status.total is None:
        yield "groups", f"{status.buffered:,} ready · {status.requeued:,} requeued"
    yield "canaries", status.canaries
    if status.ledger:
        yield "ledger", status.ledger
    if status.pool is not None:
        head, _, figures = pool_line(status.pool).partition(": ")
        yield head, figures
    for warning in status.warnings:
        yield "warning", warning
    if status.heldout:
        yield "held-out", " → ".join(f"{figure(r)} (step {n})" for n, r in status.heldout.items())
    for task, why in status.out.items():
        label = "quarantined" if why.startswith("quarantined: ") else "excluded"
        yield label, f"{task}: {why.removeprefix('quarantined: ')}"


def _workers(workers: Sequence[WorkerStatus]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    heads = ("worker", "where", "phase", "running", "finished", "memory", "lag", "up", "alive")
    for head in heads:
        right = head in ("running", "finished", "memory", "lag", "up")
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    for one in workers:
        counts = ", ".join(f"{plain(kind)} {number:,}" for kind, number in one.counts.items())
        table.add_row(
            plain(one.worker),
            plain(one.where),
            one.phase,
            f"{one.running:,}",
            f"{one.finished:,}",
            f"{one.rss_mb:,.0f} MB",
            f"{1000 * one.lag:,.0f} ms",
            duration(one.up_seconds),
            counts or NONE,
        )
    return table


def _see(directory: RunDirectory, *, is_alive: bool, status: Status) -> str:
    see = f"see: {command('ledger', directory.path)}"
    if is_alive:
        return f"{see} · {command('stop', directory.path)}"
    if reached_end(status, directory.summary) or not can_resume(directory):
        return see
    return f"{see} · continue: {command('resume', directory.path)}"


SHOWN_STEPS = 8
STEP_HEADS = (
    *("step", "reward", "held-out", "flat", "entropy", "kl", "gradient", "age"),
    *("wait", "update", "tokens/s"),
)


def steps_table(file: Path, step: int, heldout: Mapping[int, float | None]) -> Table | None:
    """The last training steps up to `step`, from steps.jsonl; None without any."""
    steps = last_steps(file, SHOWN_STEPS, up_to=step)
    lines = [(one, one.update) for one in steps if one.update is not None]
    if not lines:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for head in STEP_HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", style="yellow", no_wrap=True)
    for line, update in lines:
        table.add_row(*_step_row(line, update, heldout))
    return table


def _step_row(
    line: Step, update: StepReport, heldout: Mapping[int, float | None]
) -> tuple[str, ...]:
    return (
        str(line.step),
        figure(line.reward),
        figure(heldout[line.step]) if line.step in heldout else "",
        f"{line.flat_groups}/{line.groups}",
        *(_unless_none("{:.2g}", value) for value in (update.entropy, update.kl, update.grad_norm)),
        str(line.age),
        f"{line.seconds.wait:.1f} s",
        _unless_none("{:.1f} s", line.seconds.update),
        _unless_none("{:,.0f}", line.tokens_per_second),
        plain(update.skipped),
    )


def _unless_none(form: str, value: float | None) -> str:
    return NONE if value is None else form.format(value)
