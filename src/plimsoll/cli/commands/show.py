"""`plimsoll show`: show one trial, its verdict and its trajectory."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    shown, whatever the verdict is
  2    bad usage, or a trial or trajectory that cannot be read
"""


@click.command(
    "show", short_help="Show the verdict and the conversation of a trial.", epilog=EPILOG
)
@click.argument("trial", type=options.PATH)
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
@click.option("--branch", type=click.IntRange(min=0), metavar="N", help="Show only this branch.")
@click.option("--tokens", is_flag=True, help="Show token figures of each turn instead of texts.")
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
    help="The file of the export.  [default: standard output]",
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
    """Show the trial in the folder TRIAL: its verdict, and the messages of agent and policy.

    TRIAL may also be a trajectory file. A running or killed trial is shown up to its last
    complete exchange.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views.trial import (
        find_trial,
        print_json,
        print_shown,
        write_export,
    )

    if out is not None and export is None:
        raise click.UsageError("--out needs --export atif or --export jsonl")
    if export is not None and (as_json or tokens):
        raise click.UsageError("--export excludes --json and --tokens")
    shown = find_trial(trial)
    if export is not None:
        write_export(shown, export, branch=branch, out=out)
    elif as_json:
        print_json(shown, branch=branch)
    else:
        print_shown(shown, branch=branch, full=full, tokens=tokens)
    return 0
