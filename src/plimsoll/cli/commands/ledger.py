"""`plimsoll ledger`: the books of a run, and the proof of them."""

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    the books were shown; with --check, they add up
  1    --check found something wrong
  2    bad usage, or a file that is no ledger
  130  interrupted
"""


@click.command("ledger", epilog=EPILOG)
@click.argument("run")
@click.option(
    "--check", is_flag=True, help="Derive everything again from the first event, and prove it."
)
@click.option("--task", metavar="NAME", help="Show every group of this task.")
@options.json_output
def command(run: str, check: bool, task: str | None, as_json: bool) -> int:
    """Show the books of a run: groups and rollouts by state and cause, ages, tasks, checkpoints.

    RUN is the run's directory, its name below runs/, or its ledger. It is only read, and may be
    in use.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from pathlib import Path

    from plimsoll.cli.views.ledger import show
    from plimsoll.runs.controller_process import find_run, look_for_evaluation, look_for_run

    path = Path(run)
    # What is no run may be a ledger all the same: the file itself, or one that was copied.
    is_named = look_for_run(run) is not None or look_for_evaluation(run) is not None
    if is_named or not run.strip() or not path.exists():
        path = find_run(run).path
    return show(path, check=check, task=task, as_json=as_json)
