"""`plimsoll lint`: find problems of tasks before anything runs."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    no errors; there may be warnings
  1    at least one error
  2    bad usage
  130  interrupted
"""


@click.command(
    "lint", short_help="Check tasks for broken graders without running them.", epilog=EPILOG
)
@click.argument("path", type=options.PATH)
@click.option(
    "--backend",
    default="local",
    show_default=True,
    metavar="NAME",
    shell_complete=options.completes(*options.BACKENDS),
    help="The backend that will run the tasks: local or docker.",
)
@click.option(
    "--offline", is_flag=True, help="Assume no network in any phase, including image builds."
)
@options.assets
@options.config
@options.task
@options.json_output
@click.option(
    "--sarif",
    type=options.FILE,
    metavar="FILE",
    help="Also write the findings as SARIF 2.1.0.",
)
def command(
    path: Path,
    backend: str,
    offline: bool,
    assets: Path | None,
    config: Path | None,
    pattern: str | None,
    as_json: bool,
    sarif: Path | None,
) -> int:
    """Check the task or the folder of tasks at PATH without running anything.

    Finds problems that make rewards worthless: graders that fetch without a network and then write
    0, ignored exit codes, tests that do not parse, and more. An error makes rewards worthless or
    the task unusable; a warning may.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views.lint import Request, lint

    request = Request(path, backend, offline, assets, config, pattern)
    return lint(request, as_json=as_json, sarif_file=sarif)
