"""`plimsoll resume`: continue a run that was stopped or killed."""

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    complete; of an evaluation, every trial is graded
  1    a validation quarantined a task, or did not finish all of them
  2    bad usage, an invalid task, or workers that cannot be started
  3    stopped early, or a trial of an evaluation is void
  129  the terminal was closed; continue with `plimsoll resume`
  130  interrupted (143: terminated); continue with `plimsoll resume`
"""


@click.command("resume", short_help="Resume a run, an evaluation or a validation.", epilog=EPILOG)
@options.run
@options.keep_going
@options.json_output
def command(run: str, keep_going: bool, as_json: bool) -> int:
    """Resume RUN, the directory of a run or its name below runs/.

    RUN was made by `plimsoll run`, `plimsoll eval` or `plimsoll validate`.

    Trials that were running when the run ended run again; finished ones are kept. Its config.toml
    may be edited before: changes apply from here on.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.terminal.start import start_run
    from plimsoll.core.errors import UsageError
    from plimsoll.runs.controller_process import check_idle, find_run
    from plimsoll.runs.evaluation.requests import command_of

    directory = find_run(run)
    check_idle(directory)
    match command_of(directory):
        case "eval":
            from plimsoll.cli.terminal.evaluation import evaluate
            from plimsoll.runs.evaluation.eval_run import EvalRun

            return evaluate(EvalRun.resume(directory, keep_going=keep_going), as_json=as_json)
        case "validate":
            from plimsoll.cli.terminal.validation import validate
            from plimsoll.runs.validation.validate_run import ValidateRun

            return validate(ValidateRun.resume(directory), as_json=as_json)
        case "run":
            pass
        case other:
            raise UsageError(
                f"{directory.path} was driven by {other} and cannot be resumed here: start the "
                "trainer again, with another output folder"
            )
    return start_run(directory.config, out=directory.path, keep_going=keep_going, as_json=as_json)
