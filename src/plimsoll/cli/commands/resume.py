"""`plimsoll resume`: go on with a run that was stopped or killed."""

import click

from plimsoll.cli import options
from plimsoll.cli.commands.run import EPILOG, keep_going

__all__ = ["command"]


@click.command("resume", epilog=EPILOG)
@click.argument("run")
@keep_going
@options.json_output
def command(run: str, keep_going: bool, as_json: bool) -> int:
    """Go on with RUN, the directory of a run or its name below runs/.

    Trials that ran when it ended are tried again; what had finished is kept. Its config.toml
    may be edited before: rules and numbers hold from here on.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.terminal.start import start_run
    from plimsoll.runs.controller_process import check_idle, find_run

    directory = find_run(run)
    check_idle(directory)
    return start_run(directory.config, out=directory.path, keep_going=keep_going, as_json=as_json)
