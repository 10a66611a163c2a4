"""`plimsoll clean`: remove sandboxes and files that runs left."""

from pathlib import Path

import click

from plimsoll.cli import options
from plimsoll.cli.commands.ps import any_backend

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    done, or nothing to do
  1    something could not be removed, or the configured daemon could not be reached
  2    bad usage: no such run, or it is running
"""


@click.command(
    "clean", short_help="Remove leftovers of runs from this host and Docker.", epilog=EPILOG
)
@click.argument("run", required=False, shell_complete=options.complete_run)
@click.option(
    "--expired", is_flag=True, help="Remove resources of dead owners, and expired resources."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove all resources that Plimsoll created, shared images and volumes too.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@click.option("--force", is_flag=True, help="Also clean a running RUN; its trials become void.")
@click.option(
    "--yes", is_flag=True, help="Do not ask before --all removes resources of running runs."
)
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
    """Remove the sandboxes, networks, volumes and temporary files of RUN.

    RUN is the full name, as `plimsoll ps` shows it, or the directory of a run or an evaluation.
    Its results are kept. Shared resources, such as images, are removed by --all or when they
    expire.
    """
    if [run is not None, expired, everything].count(True) != 1:
        raise click.UsageError("choose one: the name of a RUN, --expired or --all")
    if force and run is None:
        raise click.UsageError("--force needs the name of a RUN")
    if yes and not everything:
        raise click.UsageError("--yes needs --all")
    # Imported here: `plimsoll --help` needs none of it.
    import asyncio

    from plimsoll.cli.views.clean import CleanRequest, clean
    from plimsoll.config.file import load_config
    from plimsoll.runs.controller_process import (
        check_idle,
        controller,
        end_run,
        look_for_run,
    )

    directory = None if run is None else look_for_run(run)
    if directory is not None and not dry_run:
        if force and (owner := controller(directory)) is not None:
            end_run(owner, directory, now=True)
        check_idle(directory)
    if directory is not None and config is None:
        config = directory.config  # it names the backend of its sandboxes
    request = CleanRequest(
        run if directory is None else directory.name,
        expired,
        dry_run=dry_run,
        anyway=force or yes,
        as_json=as_json,
        directory=directory,
    )
    return asyncio.run(clean(request, backend, load_config(config)))
