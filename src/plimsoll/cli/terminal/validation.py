"""`plimsoll validate` in the foreground. Results go to stdout, everything else to stderr."""

import click
import msgspec

from plimsoll.cli.terminal.console import Screen, print_all
from plimsoll.cli.terminal.trial_set import interrupts_of, run_trials
from plimsoll.cli.views.evaluation import first_line, print_unknown_keys
from plimsoll.cli.views.validation import closing, progress_line
from plimsoll.runs.validation.validate_run import ValidateRun
from plimsoll.workers.worker.backends import BACKENDS

__all__ = ["validate"]


def validate(run: ValidateRun, *, as_json: bool) -> int:
    """Validate tasks until the end or a signal, and return the exit status."""
    request = run.request
    screen = Screen(as_json=as_json)
    tasks = len(run.loaded.tasks) + len(run.loaded.invalid)
    line = first_line(
        BACKENDS[request.backend], "validate with oracle and nop", tasks, request.repeat
    )
    screen.out.print(line, soft_wrap=True)
    print_unknown_keys(run.unknown_keys, screen.err)
    with interrupts_of(run, screen.err) as interrupts:
        report = run_trials(run, interrupts, run.finish, lambda: progress_line(run), screen.err)
        if as_json:
            click.echo(msgspec.json.encode(report))
        lines = closing(run, report, interrupted=interrupts.signal is not None)
        print_all(screen.out, lines)
        if interrupts.exit_code is not None:
            return interrupts.exit_code
    return 1 if report.quarantined or report.not_finished else 0
