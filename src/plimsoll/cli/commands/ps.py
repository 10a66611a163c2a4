"""`plimsoll ps`: list sandboxes and other resources, by run."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["any_backend", "command"]

EPILOG = """\b
Exit status:
  0    listed, even if there is nothing
  2    bad usage, or the named backend cannot be reached
"""

any_backend = click.option(
    "--backend",
    default="all",
    show_default=True,
    metavar="NAME",
    shell_complete=options.completes(*options.BACKENDS, "all"),
    help="The backend: local, docker or all.",
)


@click.command("ps", short_help="List sandboxes, networks, volumes and images.", epilog=EPILOG)
@any_backend
@options.config
@options.json_output
def command(backend: str, config: Path | None, as_json: bool) -> int:
    """List sandboxes, networks, volumes and images that Plimsoll made, of all runs and owners."""
    # Imported here: `plimsoll --help` needs none of it.
    import asyncio

    from plimsoll.cli.views.inventory import show_inventory
    from plimsoll.config.file import load_config

    asyncio.run(show_inventory(backend, load_config(config), as_json=as_json))
    return 0
