"""`plimsoll ledger`: the books of a run, and the proof of them."""

from pathlib import Path

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
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--check", is_flag=True, help="Derive everything again from the first event, and prove it."
)
@click.option("--task", metavar="NAME", help="Show every group of this task.")
@options.json_output
def command(run: Path, check: bool, task: str | None, as_json: bool) -> int:
    """Show the books of a run: groups and rollouts by state and cause, ages, tasks, checkpoints.

    RUN is the run's directory or its ledger. It is only read, and may be in use.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.ledger_report import show

    return show(run, check=check, task=task, as_json=as_json)
