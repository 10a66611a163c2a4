"""Progress on stderr while trials run: a live table, or a line at intervals."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from plimsoll.cli.views.evaluation import live
from plimsoll.cli.views.text import plain
from plimsoll.runs.evaluation.trial_run import TrialSetRun

__all__ = ["showing_progress", "showing_warnings"]

LIVE_SECONDS = 0.25
LINE_SECONDS = 10.0


@asynccontextmanager
async def showing_progress(
    run: TrialSetRun, console: Console, line: Callable[[], str]
) -> AsyncGenerator[None]:
    """Show the running trials and the progress line during the block, and warnings."""
    show = _live(run, console, line) if console.is_terminal else _lines(console, line)
    with showing_warnings(console):
        shower = asyncio.create_task(show)
        try:
            yield
        finally:
            shower.cancel()
            with suppress(asyncio.CancelledError):
                await shower


@contextmanager
def showing_warnings(err: Console) -> Generator[None]:
    """Print the warnings that the package logs."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = f"warning: {plain(record.getMessage())}"
            err.print(Text(text, style="yellow"), soft_wrap=True)
            if record.exc_info:
                # An unexpected exception: the traceback is for its developers.
                trace = logging.Formatter().formatException(record.exc_info)
                err.print(Text(plain(trace)), soft_wrap=True)

    log, handler = logging.getLogger("plimsoll"), Shown(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


async def _live(run: TrialSetRun, console: Console, line: Callable[[], str]) -> None:
    with Live(console=console, auto_refresh=False, transient=True) as table:
        while True:
            table.update(live(run, line()), refresh=True)
            await asyncio.sleep(LIVE_SECONDS)


async def _lines(console: Console, line: Callable[[], str]) -> None:
    """For logs and pipes: a line at intervals; none for a short run."""
    loop = asyncio.get_running_loop()
    printed = loop.time()
    while True:
        await asyncio.sleep(LIVE_SECONDS)
        if loop.time() - printed >= LINE_SECONDS:
            console.print(line(), soft_wrap=True)
            printed = loop.time()
