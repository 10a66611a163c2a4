"""A trial set in the foreground: `plimsoll eval` and `plimsoll validate` share it."""

import contextlib
import sys
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from plimsoll.cli.terminal.interrupts import Interrupts, RemoteSandboxes
from plimsoll.cli.terminal.progress import showing_progress
from plimsoll.cli.views.text import command
from plimsoll.core.errors import PlimsollError
from plimsoll.runs.evaluation.trial_run import TrialSetRun

__all__ = ["interrupts_of", "run_trials"]

_T = TypeVar("_T")


def interrupts_of(run: TrialSetRun, err: Console) -> Interrupts:
    """The handler of signals: it waits longer for sandboxes of a Docker daemon, which outlive this
    process."""

    def say(text: str) -> None:
        err.print(Text(text, style="yellow"), soft_wrap=True)

    is_local = run.plan.config.run.backend == "local"
    return Interrupts(sandboxes=None if is_local else RemoteSandboxes(run.directory.name, say))


def run_trials(
    run: TrialSetRun,
    interrupts: Interrupts,
    finish: Callable[[], _T],
    line: Callable[[], str],
    err: Console,
) -> _T:
    """Run the trials until they end or a signal arrives, and return the result of `finish`.

    `finish` is called after an error too. `line` is the progress in one line. If an error ends a
    run that has begun, the command that continues it is printed.
    """

    async def trials() -> None:
        async with showing_progress(run, err, line):
            await run.run()

    try:
        try:
            # Some libraries print to stdout, for example about the death of a node.
            with contextlib.redirect_stdout(sys.stderr):
                interrupts.run(trials())
        finally:
            result = finish()
    except PlimsollError:
        if run.has_begun:
            resume = command("resume", run.directory.path)
            text = f"ended by an error · finished trials are kept · continue: {resume}"
            err.print(Text(text, style="yellow"), soft_wrap=True)
        raise
    return result
