"""Runs in the foreground: signals, progress, the closing lines and the exit status."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Protocol

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plimsoll.cli.terminal.console import Screen
from plimsoll.cli.terminal.interrupts import Interrupts
from plimsoll.cli.terminal.progress import showing_warnings
from plimsoll.cli.views.run import closing
from plimsoll.cli.views.status import progress_line, steps_table
from plimsoll.cli.views.text import command, plain
from plimsoll.core.errors import PlimsollError
from plimsoll.runs.rollouts import Rollouts

__all__ = ["ForegroundRun", "run_in_foreground"]

LIVE_SECONDS = 0.25
LINE_SECONDS = 10.0
BAR_WIDTH = 20


class ForegroundRun(Protocol):
    """A run of `plimsoll run` or `plimsoll resume`."""

    @property
    def rollouts(self) -> Rollouts | None:
        """None before they are made."""
        ...

    @property
    def doing(self) -> str:
        """The current activity, if it is not rolling out."""
        ...

    @property
    def lingers(self) -> bool:
        """Whether a running thread would delay the exit."""
        ...

    @property
    def weights(self) -> Path | None:
        """The folder of weights that stays after the run, if there is one."""
        ...

    async def run(self, screen: Screen) -> None: ...


def run_in_foreground(driven: ForegroundRun, *, as_json: bool) -> int:
    """Run until the end or a signal, and return the exit status."""
    screen = Screen(as_json=as_json)
    with Interrupts(lambda: _drain(driven, screen.err)) as interrupts:
        failed = ""
        # Some libraries print to stdout, for example about the death of a node.
        with redirect_stdout(sys.stderr), showing_warnings(screen.err):
            try:
                interrupts.run(_run(driven, screen))
            except PlimsollError as error:
                # Before the run begins, it is an error of the command or its config.
                if not _has_begun(driven):
                    raise
                failed = str(error)
        code = _end(driven, screen, interrupts, as_json=as_json)
        if failed:
            screen.err.print(Text(f"plimsoll: {plain(failed)}"), soft_wrap=True)
            code = 3
        if driven.lingers:
            # Python would wait for the thread.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code


def _has_begun(driven: ForegroundRun) -> bool:
    return driven.rollouts is not None and driven.rollouts.has_begun


def _end(driven: ForegroundRun, screen: Screen, interrupts: Interrupts, *, as_json: bool) -> int:
    """Print the end of the run. Returns the exit status."""
    rollouts = driven.rollouts
    if rollouts is None or not rollouts.is_over:
        text = "ended before anything started"
        if rollouts is not None and _has_begun(driven):
            text = f"ended at once · continue: {command('resume', rollouts.directory.path)}"
        screen.err.print(Text(text, style="yellow"), soft_wrap=True)
        return interrupts.exit_code or 1
    summary = rollouts.summary
    if as_json:
        click.echo(msgspec.json.encode(summary))
    for line in closing(summary, rollouts.held_out, driven.weights):
        screen.out.print(line, soft_wrap=True)
    if interrupts.exit_code is not None and not summary.done:
        return interrupts.exit_code
    return 0 if summary.done and not summary.problems else 3


def _drain(driven: ForegroundRun, err: Console) -> bool:
    """Drain the run, on the first signal. False if there is nothing to drain."""
    rollouts = driven.rollouts
    if rollouts is None or not rollouts.stop():
        return False
    grace = rollouts.plan.config.workers.grace_seconds
    text = f"stopping: running trials have {grace:g} s; repeat the signal to end them now"
    err.print(Text(text, style="yellow"), soft_wrap=True)
    return True


async def _run(driven: ForegroundRun, screen: Screen) -> None:
    async with _showing(driven, screen.err):
        await driven.run(screen)


@asynccontextmanager
async def _showing(driven: ForegroundRun, err: Console) -> AsyncGenerator[None]:
    """Show the progress of the run during the block."""
    shower = asyncio.create_task((_live if err.is_terminal else _lines)(driven, err))
    try:
        yield
    finally:
        shower.cancel()
        with suppress(asyncio.CancelledError):
            await shower


def _line(driven: ForegroundRun) -> str:
    rollouts = driven.rollouts
    if rollouts is None or not rollouts.has_begun:
        return driven.doing
    line = progress_line(rollouts.status())
    return f"{driven.doing} · {line}" if driven.doing else line


async def _live(driven: ForegroundRun, err: Console) -> None:
    with Live(console=err, auto_refresh=False, transient=True) as shown:
        while True:
            shown.update(Group(*await _parts(driven)), refresh=True)
            await asyncio.sleep(LIVE_SECONDS)


async def _parts(driven: ForegroundRun) -> list[RenderableType]:
    """The last steps, the progress bar, and the progress line."""
    rollouts, line = driven.rollouts, Text(_line(driven))
    if rollouts is None or not rollouts.has_begun:
        return [line]
    status = rollouts.status()
    # In a thread: the run directory may be on a slow file system.
    steps = rollouts.directory.steps
    table = await asyncio.to_thread(steps_table, steps, status.step, status.heldout)
    parts: list[RenderableType] = [] if table is None else [table]
    if status.steps is None:
        return [*parts, line]
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(total=status.steps, completed=status.step, width=BAR_WIDTH), line)
    return [*parts, bar]


async def _lines(driven: ForegroundRun, err: Console) -> None:
    """For logs and pipes: new activities, and a progress line at intervals."""
    loop = asyncio.get_running_loop()
    doing, printed = "", loop.time()
    while True:
        kind = driven.doing.partition(" · ")[0]
        is_new = kind not in ("", doing)
        if is_new or loop.time() - printed >= LINE_SECONDS:
            line = kind if is_new else _line(driven)
            if line:
                err.print(line, soft_wrap=True)
            printed = loop.time()
        doing = kind
        await asyncio.sleep(LIVE_SECONDS)
