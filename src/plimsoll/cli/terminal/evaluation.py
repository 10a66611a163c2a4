"""`plimsoll eval` in the foreground. Results go to stdout, everything else to stderr."""

import contextlib
import shlex
import sys
from collections.abc import Generator, Sequence

import click
import msgspec
from rich.console import Console
from rich.text import Text

from plimsoll.cli.terminal.console import console, print_all
from plimsoll.cli.terminal.interrupts import Interrupts, RemoteSandboxes
from plimsoll.cli.terminal.progress import showing_progress
from plimsoll.cli.views.evaluation import closing, first_line
from plimsoll.cli.views.text import plain
from plimsoll.core.errors import PlimsollError
from plimsoll.runs.evaluation.eval_run import EvalRun, exit_code
from plimsoll.runs.evaluation.trial_run import TrialSetRun
from plimsoll.runs.files.results import Summary
from plimsoll.tasks.problems import UnknownKey
from plimsoll.workers.worker.backends import BACKENDS

__all__ = ["evaluate", "naming_resume", "remote_sandboxes", "warn_of_unknown_keys"]

SHOWN_UNKNOWN_KEYS = 10


def evaluate(run: EvalRun, *, as_json: bool) -> int:
    """Run an evaluation until it ends or a signal arrives, and return the exit status."""
    request = run.request
    err = console(stderr=True)
    # With --json, only the JSON object goes to stdout.
    out = err if as_json else console(stderr=False)
    _begin(run, out, err)
    with Interrupts(
        sandboxes=remote_sandboxes(request.backend, run.directory.name, err)
    ) as interrupts:
        with naming_resume(run, err):
            try:
                # Some libraries print to stdout, for example about the death of a node.
                with contextlib.redirect_stdout(sys.stderr):
                    interrupts.run(_run(run, err))
            finally:
                summary = run.finish()
        if as_json:
            click.echo(msgspec.json.encode(summary))
        _end(run, summary, out, interrupted=interrupts.signal is not None)
        return exit_code(summary) if interrupts.exit_code is None else interrupts.exit_code


@contextlib.contextmanager
def naming_resume(run: TrialSetRun, err: Console) -> Generator[None]:
    """If an error ends a run that has begun, print the command that continues it."""
    try:
        yield
    except PlimsollError:
        if run.has_begun:
            command = shlex.join(("plimsoll", "resume", str(run.directory.path)))
            text = f"ended by an error · finished trials are kept · continue: {command}"
            err.print(Text(text, style="yellow"), soft_wrap=True)
        raise


def remote_sandboxes(backend: str, run: str, err: Console) -> RemoteSandboxes | None:
    """The sandboxes that outlive this process: those of a Docker daemon."""

    def say(text: str) -> None:
        err.print(Text(text, style="yellow"), soft_wrap=True)

    return None if backend == "local" else RemoteSandboxes(run, say)


async def _run(run: EvalRun, err: Console) -> None:
    async with showing_progress(run, err):
        await run.run()


def _begin(run: EvalRun, out: Console, err: Console) -> None:
    """Print the first line, then problems of the tasks."""
    request, selection = run.request, run.selection
    backend = BACKENDS[request.backend]
    tasks = len(selection.tasks) - len(run.left_out)
    line = first_line(backend, _actor(run), tasks, request.attempts)
    out.print(line, soft_wrap=True)
    if run.left_out:
        text = f"not run: {len(run.left_out):,} quarantined tasks, named at the end"
        err.print(Text(text, style="yellow"), soft_wrap=True)
    if count := run.quarantined:
        text = f"warning: quarantined tasks: {count:,}; --skip-quarantined leaves them out"
        err.print(Text(text, style="yellow"), soft_wrap=True)
    for problem in selection.problems:
        err.print(Text(f"not run: {plain(problem)}", style="yellow"), soft_wrap=True)
    warn_of_unknown_keys(selection.unknown_keys, err)


def _actor(run: EvalRun) -> str:
    """The agent and the policy."""
    if not run.urls:
        return f"agent {run.request.agent}"
    first, *more = run.urls
    others = f" and {len(more)} more" if more else ""
    return f"agent {run.request.agent} · policy {first}{others}"


def warn_of_unknown_keys(keys: Sequence[UnknownKey], err: Console) -> None:
    """Print the first unknown keys and the number of others."""
    for key in keys[:SHOWN_UNKNOWN_KEYS]:
        err.print(Text(f"warning: {plain(key.describe())}", style="yellow"), soft_wrap=True)
    if (more := len(keys) - SHOWN_UNKNOWN_KEYS) > 0:
        err.print(Text(f"warning: and {more} more unknown keys", style="yellow"))


def _end(run: EvalRun, summary: Summary, out: Console, *, interrupted: bool) -> None:
    lines = closing(
        run,
        run.summary,
        run.directory,
        skipped=run.selection.problems,
        interrupted=interrupted,
        left_out=run.left_out,
        diagnosis=run.diagnosis,
        pool=summary.pool,
    )
    print_all(out, lines)
