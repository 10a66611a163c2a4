"""`plimsoll eval` in the foreground. Results go to stdout, everything else to stderr."""

import click
import msgspec
from rich.text import Text

from plimsoll.cli.terminal.console import Screen, print_all
from plimsoll.cli.terminal.trial_set import interrupts_of, run_trials
from plimsoll.cli.views.evaluation import closing, first_line, print_unknown_keys, progress_line
from plimsoll.cli.views.text import count, plain
from plimsoll.runs.evaluation.eval_run import EvalRun, exit_code
from plimsoll.workers.worker.backends import BACKENDS

__all__ = ["evaluate"]


def evaluate(run: EvalRun, *, as_json: bool) -> int:
    """Run an evaluation until it ends or a signal arrives, and return the exit status."""
    screen = Screen(as_json=as_json)
    _print_begin(run, screen)
    with interrupts_of(run, screen.err) as interrupts:
        summary = run_trials(run, interrupts, run.finish, lambda: progress_line(run), screen.err)
        if as_json:
            click.echo(msgspec.json.encode(summary))
        lines = closing(
            run,
            summary,
            invalid=run.selection.problems,
            left_out=run.left_out,
            interrupted=interrupts.signal is not None,
        )
        print_all(screen.out, lines)
        return exit_code(summary) if interrupts.exit_code is None else interrupts.exit_code


def _print_begin(run: EvalRun, screen: Screen) -> None:
    """Print the first line, then problems of the tasks."""
    request, selection, err = run.request, run.selection, screen.err
    tasks = len(selection.tasks) - len(run.left_out)
    backend = BACKENDS[request.backend]
    screen.out.print(first_line(backend, _actor(run), tasks, request.attempts), soft_wrap=True)
    if run.left_out:
        text = f"not run: {count(len(run.left_out), 'quarantined task')}, named at the end"
        err.print(Text(text, style="yellow"), soft_wrap=True)
    if number := run.quarantined:
        text = f"warning: quarantined tasks: {number:,}; --skip-quarantined leaves them out"
        err.print(Text(text, style="yellow"), soft_wrap=True)
    for problem in selection.problems:
        err.print(Text(f"not run: {plain(problem)}", style="yellow"), soft_wrap=True)
    print_unknown_keys(selection.unknown_keys, err)


def _actor(run: EvalRun) -> str:
    """The agent and the policy."""
    if not run.urls:
        return f"agent {run.request.agent}"
    first, *more = run.urls
    others = f" and {len(more)} more" if more else ""
    return f"agent {run.request.agent} · policy {first}{others}"
