"""`plimsoll show`: one trial, from its verdict to every word that was said."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    it was shown, whatever its verdict
  2    bad usage, or a trial or trajectory that cannot be read
"""


@click.command("show", epilog=EPILOG)
@click.argument("trial", type=options.PATH)
@click.option("--full", is_flag=True, help="Show long texts whole.")
@click.option("--branch", type=click.IntRange(min=0), metavar="N", help="Only this branch, whole.")
@click.option("--tokens", is_flag=True, help="Show the tokens of each turn, not what was said.")
@click.option(
    "--export",
    "export",
    type=click.Choice(["atif", "jsonl"]),
    help="Write the trajectory as ATIF 1.8, or as one JSON line for each sample.",
)
@click.option(
    "--out",
    type=options.FILE,
    metavar="FILE",
    help="Where the export goes.  [default: standard output]",
)
@options.json_output
def command(
    trial: Path,
    full: bool,
    branch: int | None,
    tokens: bool,
    export: str | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Show the trial in the folder TRIAL: its verdict, and what the agent and the policy said.

    TRIAL may also be a trajectory file. A trial that still runs, or was killed, is shown as
    far as it came.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views.trial import (
        find_trial,
        print_json,
        print_shown,
        write_export,
    )

    if out is not None and export is None:
        raise click.UsageError("--out says where an export goes: give --export atif or jsonl, too")
    if export is not None and (as_json or tokens):
        raise click.UsageError("--export goes without --json and --tokens")
    shown = find_trial(trial)
    if export is not None:
        write_export(shown, export, branch=branch, out=out)
    elif as_json:
        print_json(shown, branch=branch)
    else:
        print_shown(shown, branch=branch, full=full, tokens=tokens)
    return 0
