"""`plimsoll clean`: remove what runs left, and say what."""

from pathlib import Path

import click

from plimsoll.cli import options
from plimsoll.cli.commands.ps import any_backend

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    done, also where there was nothing to do
  1    something could not be removed, or the engine that was named could not be asked
  2    bad usage: no such run, or it is alive
"""


@click.command("clean", epilog=EPILOG)
@click.argument("run", required=False)
@click.option("--expired", is_flag=True, help="What dead owners left, or is past its expiry.")
@click.option("--all", "everything", is_flag=True, help="All that Plimsoll made, caches too.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--force", is_flag=True, help="Also a RUN that is alive; its trials become void.")
@click.option("--yes", is_flag=True, help="Do not ask where --all takes from live runs.")
@any_backend
@options.config
@options.json_output
def command(
    run: str | None,
    expired: bool,
    everything: bool,
    dry_run: bool,
    force: bool,
    yes: bool,
    backend: str,
    config: Path | None,
    as_json: bool,
) -> int:
    """Remove what the run RUN left: its sandboxes, networks, volumes and temporary files.

    RUN is the whole name, as `plimsoll ps` shows it, or the directory of a run or an evaluation.
    What it did is kept.
    What serves many runs, such as images, goes with --all, or when it expires.
    """
    if [run is not None, expired, everything].count(True) != 1:
        raise click.UsageError("say what to remove: the name of a RUN, --expired or --all")
    if force and run is None:
        raise click.UsageError("--force goes with the name of a RUN")
    if yes and not everything:
        raise click.UsageError("--yes goes with --all")
    # Imported here: `plimsoll --help` needs none of it.
    import asyncio

    from plimsoll.cli.views.clean import CleanRequest, clean
    from plimsoll.config.file import load_config
    from plimsoll.runs.controller_process import (
        check_idle,
        controller,
        end_run,
        look_for_evaluation,
        look_for_run,
    )

    directory = None if run is None else look_for_run(run)
    evaluation = None if run is None or directory is not None else look_for_evaluation(run)
    if directory is not None and not dry_run:
        if force and (owner := controller(directory)) is not None:
            end_run(owner, directory, now=True)
        check_idle(directory)
    if directory is not None and config is None:
        config = directory.config  # it says where its sandboxes are
    found = directory or evaluation
    wanted = CleanRequest(
        run if found is None else found.name,
        expired,
        dry_run=dry_run,
        anyway=force or yes,
        as_json=as_json,
        directory=directory,
        is_known=found is not None,
    )
    return asyncio.run(clean(wanted, backend, load_config(config)))
