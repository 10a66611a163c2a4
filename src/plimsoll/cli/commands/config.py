"""`plimsoll config`: the config as it is understood, with every default."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    it was shown
  2    the file cannot be read, or has a mistake
"""


@click.command("config", epilog=EPILOG)
@click.argument("file", type=options.PATH, required=False)
@options.json_output
def command(file: Path | None, as_json: bool) -> int:
    """Print the config in FILE with every default, as TOML that says what each key means.

    Without FILE, plimsoll.toml where it is there, else the defaults. What is printed can be
    used as a config.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.config.dump import dump_config
    from plimsoll.config.file import load_config

    config = load_config(file)
    text = config.model_dump_json() if as_json else dump_config(config)
    # TOML and JSON are UTF-8, whatever the terminal is.
    click.echo(text.encode(), nl=as_json)
    return 0
