"""Progress on stderr while trials run: a live table, or a line now and then."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from plimsoll.cli.views.evaluation import live, progress_line
from plimsoll.cli.views.text import plain
from plimsoll.runs.evaluation.eval_loop import Evaluation
from plimsoll.sandboxes.protocol import Backend

__all__ = ["ProgressSource", "showing_progress"]

LIVE_SECONDS = 0.25
LINE_SECONDS = 10.0


class ProgressSource(Protocol):
    """A run whose progress can be shown."""

    @property
    def backend(self) -> Backend: ...

    @property
    def evaluation(self) -> Evaluation: ...


@asynccontextmanager
async def showing_progress(
    run: ProgressSource, console: Console, line: Callable[[], str] | None = None
) -> AsyncGenerator[None]:
    """Show how the run is going for as long as the block lasts, and its warnings once each.

    `line` says it in one line, where that of an evaluation does not fit.
    """
    warn = _sayer(run, console)
    show = _live if console.is_terminal else _lines
    line = line or (lambda: progress_line(run.evaluation))
    shower = asyncio.create_task(show(run, console, warn, line))
    try:
        yield
    finally:
        shower.cancel()
        with suppress(asyncio.CancelledError):
            await shower
        warn()


def _sayer(run: ProgressSource, console: Console) -> Callable[[], None]:
    """Says what the backend has begun to warn of since the last call."""
    said = 0

    def say() -> None:
        nonlocal said
        warnings: Sequence[str] = run.backend.warnings
        for warning in warnings[said:]:
            console.print(Text(f"warning: {plain(warning)}", style="yellow"), soft_wrap=True)
        said = len(warnings)

    return say


async def _live(
    run: ProgressSource, console: Console, warn: Callable[[], None], line: Callable[[], str]
) -> None:
    with Live(console=console, auto_refresh=False, transient=True) as table:
        while True:
            warn()
            table.update(live(run.evaluation, line()), refresh=True)
            await asyncio.sleep(LIVE_SECONDS)


async def _lines(
    _: ProgressSource, console: Console, warn: Callable[[], None], line: Callable[[], str]
) -> None:
    """For logs and pipes: nothing for a short run, a line every so often for a long one."""
    loop = asyncio.get_running_loop()
    said = loop.time()
    while True:
        warn()
        await asyncio.sleep(LIVE_SECONDS)
        if loop.time() - said >= LINE_SECONDS:
            console.print(line(), soft_wrap=True)
            said = loop.time()
