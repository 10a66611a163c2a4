"""`plimsoll config`: print the effective config with every default."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    printed
  2    the file cannot be read or is invalid
"""


@click.command("config", short_help="Print a config with every key and default.", epilog=EPILOG)
@click.argument("file", type=options.PATH, required=False)
@options.json_output
def command(file: Path | None, as_json: bool) -> int:
    """Print the config in FILE with every default, as TOML with documented keys.

    Without FILE: plimsoll.toml of the current folder, else the defaults. The output is a valid
    config.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.config.dump import dump_config
    from plimsoll.config.file import load_config

    config = load_config(file)
    text = config.model_dump_json() if as_json else dump_config(config)
    # TOML and JSON are UTF-8, whatever the encoding of the terminal is.
    click.echo(text.encode(), nl=as_json)
    return 0
