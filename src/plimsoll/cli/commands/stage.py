"""`plimsoll stage`: download the assets of tasks once, for sandboxes without a network."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    all assets that can be staged are there
  1    an asset could not be downloaded, or is missing or damaged (--check)
  2    bad usage, or another process is staging to the folder
"""


@click.command("stage", short_help="Download the assets that tasks need offline.", epilog=EPILOG)
@click.argument("path", type=options.PATH)
@click.option("--to", "folder", type=options.PATH, required=True, metavar="DIR",
              help="The assets folder, usually on shared storage.")  # fmt: skip
@options.task
@click.option("--from", "given", multiple=True, metavar="KIND:SOURCE=PATH",
              help="Use a local copy: git:URL=REPOSITORY-OR-BUNDLE, url:URL=FILE, "
              "wheels=FOLDER, npm=CACHE.")  # fmt: skip
@click.option("--python", "pythons", type=options.python_version, multiple=True, metavar="X.Y",
              help="Stage wheels for this Python version; can be repeated.  "
              "[default: that of each image]")  # fmt: skip
@click.option("--check", is_flag=True, help="Verify digests and change nothing.")
@options.json_output
def command(
    path: Path,
    folder: Path,
    pattern: str | None,
    given: tuple[str, ...],
    pythons: tuple[str, ...],
    check: bool,
    as_json: bool,
) -> int:
    """Stage the assets that the task or the folder of tasks at PATH downloads.

    Repositories, files, wheels, uv and npm packages, each once. Staged assets are not downloaded
    again unless they are damaged.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views import assets
    from plimsoll.tasks.assets.local_sources import parse_local_sources

    if check:
        return assets.check(folder, as_json=as_json)
    sources = parse_local_sources(given)
    return assets.stage(path, folder, pattern, sources, pythons, as_json=as_json)
