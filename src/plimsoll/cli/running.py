"""What `plimsoll run` and `plimsoll resume` print around a run: its start, progress and end."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, redirect_stdout, suppress

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from plimsoll import __version__
from plimsoll.cli.evaluate import warn_of_unknown_keys
from plimsoll.cli.interrupts import Interrupts
from plimsoll.cli.render import console, count, diagnosed, duration, figure, plain
from plimsoll.cli.status_report import progress_line, voids
from plimsoll.runs.backends import BACKENDS
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.status import RunSummary

__all__ = ["roll_out"]

LIVE_SECONDS = 0.25
LINE_SECONDS = 10.0


def roll_out(rollouts: Rollouts, *, as_json: bool) -> int:
    """Run to the end or to a signal, and return the exit status."""
    err = console(stderr=True)
    # With --json, stdout holds the object alone.
    out = err if as_json else console(stderr=False)
    _begin(rollouts.plan, out, err)
    with Interrupts(lambda: _drain(rollouts, err)) as interrupts:
        # Some libraries print what they notice, such as the death of a node.
        with redirect_stdout(sys.stderr):
            interrupts.run(_run(rollouts, err))
        if not rollouts.is_over:
            said = "ended before anything was started"
            if rollouts.has_begun:
                said = f"ended at once · go on: plimsoll resume {rollouts.directory.path}"
            err.print(Text(said, style="yellow"), soft_wrap=True)
            return interrupts.exit_code or 1
        summary = rollouts.summary
        if as_json:
            sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
            sys.stdout.flush()
        for line in _closing(summary):
            out.print(line, soft_wrap=True)
        if interrupts.exit_code is not None and not summary.done:
            return interrupts.exit_code
        return 0 if summary.done and not summary.problems else 3


def _drain(rollouts: Rollouts, err: Console) -> bool:
    """What the first signal does."""
    if not rollouts.stop():
        return False
    grace = rollouts.plan.config.workers.grace_seconds
    said = f"stopping: running trials have {grace:g} s; once more ends them now"
    err.print(Text(said, style="yellow"), soft_wrap=True)
    return True


async def _run(rollouts: Rollouts, err: Console) -> None:
    async with rollouts:
        if lost := rollouts.restored.lost:
            said = f"{count(lost, 'trial')} ran when the run was killed: tried again"
            err.print(Text(said), soft_wrap=True)
        async with _showing(rollouts, err):
            async for batch in rollouts.batches():
                await rollouts.commit(batch)


@asynccontextmanager
async def _showing(rollouts: Rollouts, err: Console) -> AsyncGenerator[None]:
    """Show how the run is going for as long as the block lasts."""
    shower = asyncio.create_task((_live if err.is_terminal else _lines)(rollouts, err))
    try:
        yield
    finally:
        shower.cancel()
        with suppress(asyncio.CancelledError):
            await shower


async def _live(rollouts: Rollouts, err: Console) -> None:
    with Live(console=err, auto_refresh=False, transient=True) as shown:
        while True:
            shown.update(Text(progress_line(rollouts.status())), refresh=True)
            await asyncio.sleep(LIVE_SECONDS)


async def _lines(rollouts: Rollouts, err: Console) -> None:
    """For logs and pipes: a line every so often."""
    while True:
        await asyncio.sleep(LINE_SECONDS)
        err.print(progress_line(rollouts.status()), soft_wrap=True)


def _begin(plan: Plan, out: Console, err: Console) -> None:
    run, workers = plan.config.run, plan.config.workers
    version = ".".join(__version__.split(".")[:2])
    tasks = len(plan.tasks) - len(plan.left_out)
    epochs = count(run.epochs or 0, "epoch")
    long = epochs if run.steps is None else count(run.steps, "step")
    parts = [
        f"plimsoll {version}",
        BACKENDS[run.backend],
        f"agent {run.agent}",
        *([f"policy {plan.policy.urls[0]}"] if plan.policy is not None else []),
        count(tasks, "task"),
        f"{long} of {run.batch_groups} × {run.group_size} trials",
        f"{workers.number} × {workers.concurrency} at once ({workers.engine})",
    ]
    out.print(Text(" · ".join(parts)), soft_wrap=True)
    for name, why in plan.left_out.items():
        err.print(Text(f"not run: {plain(name)}: {plain(why)}", style="yellow"), soft_wrap=True)
    warn_of_unknown_keys(plan.unknown_keys, err)


def _closing(summary: RunSummary) -> Iterator[Text]:
    """How it ended, what came of it, what was not done, where to look."""
    style = "" if summary.done else "yellow"
    steps, trials = count(summary.steps, "step"), count(summary.trials, "trial")
    yield Text(
        f"{summary.ended} · {steps}, {trials} in {duration(summary.seconds)} · "
        f"reward {figure(summary.reward)} · void {voids(summary.void)}",
        style=style,
    )
    if summary.breaker is not None:
        yield from diagnosed(summary.breaker)
    for task, why in summary.quarantined.items():
        yield Text(f"out: {plain(task)}: {plain(why)}", style="yellow")
    if summary.left_over:
        yield Text(f"left over: {count(summary.left_over, 'group')}, too few for a batch")
    yield _proof(summary)
    again = "" if summary.done else f" · go on: plimsoll resume {summary.path}"
    yield Text(f"look: {summary.path}/summary.json · plimsoll ledger {summary.path}{again}")


def _proof(summary: RunSummary) -> Text:
    if summary.problems is None:
        return Text(f"the ledger was not checked: plimsoll ledger {summary.path} --check does it")
    if summary.problems:
        return Text(f"the ledger is wrong: {'; '.join(summary.problems)}", style="red")
    age = count(summary.oldest, "version")
    return Text(
        f"nothing lost, nothing twice (ledger checked) · oldest sample in a batch: {age} old"
    )
