"""`plimsoll ledger`: show the ledger of a run, and check it."""

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    shown; with --check, the ledger is consistent
  1    --check found a problem
  2    bad usage, or a file that is not a ledger
  130  interrupted
"""


@click.command("ledger", short_help="Show and check the ledger of a run.", epilog=EPILOG)
@options.run
@click.option(
    "--check", is_flag=True, help="Derive all figures again from the first event and compare them."
)
@click.option("--task", metavar="NAME", help="Show every group of this task.")
@options.json_output
def command(run: str, check: bool, task: str | None, as_json: bool) -> int:
    """Show the ledger of a run: groups and rollouts by state and cause, ages, tasks, checkpoints.

    RUN is the run's directory, its name below runs/, or its ledger file. It is only read, and may
    be in use.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from pathlib import Path

    from plimsoll.cli.views.ledger import show
    from plimsoll.runs.controller_process import find_run, look_for_run

    path = Path(run)
    # A path that is no run may be a ledger file, or a copy of one.
    if look_for_run(run) is not None or not run.strip() or not path.exists():
        path = find_run(run).path
    return show(path, check=check, task=task, as_json=as_json)
