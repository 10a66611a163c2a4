"""`plimsoll ps`: what is alive, by run."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["any_backend", "command"]

EPILOG = """\b
Exit status:
  0    listed, also where there is nothing
  2    bad usage, or the backend that was named cannot be asked
"""

any_backend = click.option(
    "--backend",
    default="all",
    show_default=True,
    metavar="NAME",
    help="Where to look: local, docker or all.",
)


@click.command("ps", epilog=EPILOG)
@any_backend
@options.config
@options.json_output
def command(backend: str, config: Path | None, as_json: bool) -> int:
    """List what Plimsoll has made and not yet removed, of every run, whoever owns it."""
    # Imported here: `plimsoll --help` needs none of it.
    import asyncio

    from plimsoll.cli.views.inventory import show_inventory
    from plimsoll.config.file import load_config

    asyncio.run(show_inventory(backend, load_config(config), as_json=as_json))
    return 0
