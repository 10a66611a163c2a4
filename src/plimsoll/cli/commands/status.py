"""`plimsoll status`: show the status of a run."""

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    shown, whether the run is running or not
  2    bad usage: no such run
"""


@click.command("status", short_help="Show the status of a run.", epilog=EPILOG)
@options.run
@options.json_output
def command(run: str, as_json: bool) -> int:
    """Show the status of RUN, the directory of a run or its name below runs/.

    Steps, rewards, ages, void trials, workers and their memory. It only reads.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views.status import show
    from plimsoll.runs.controller_process import find_run

    return show(find_run(run), as_json=as_json)
