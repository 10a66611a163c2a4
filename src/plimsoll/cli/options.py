"""Options that several commands share, each worded once."""

import os
import re
from pathlib import Path

import click

__all__ = [
    "FILE",
    "PATH",
    "assets",
    "backend",
    "concurrency",
    "config",
    "engine",
    "json_output",
    "pool",
    "python_version",
    "task",
    "workers",
]


class _Path(click.Path):
    """A path that somebody names. An empty one, as of a variable that is not set, is none: the
    system would take it for the current folder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if not os.fspath(value).strip():
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
FILE = _Path(path_type=Path, dir_okay=False)


def python_version(text: str) -> str:
    """The type of an option that names a Python."""
    if re.fullmatch(r"\d+\.\d+", text) is None:
        raise click.BadParameter(f"{text!r} is no version of Python such as 3.12")
    return text


backend = click.option(
    "--backend",
    default="local",
    show_default=True,
    metavar="NAME",
    help="Where sandboxes run: local or docker.",
)
concurrency = click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Trials at once.  [default: one for each core, at least 2]",
)
workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Worker processes that share the trials.  [default: this process runs them]",
)
engine = click.option(
    "--engine",
    type=click.Choice(["process", "ray"]),
    help="What starts the workers.  [default: process]",
)
pool = click.option(
    "--pool",
    type=click.Choice(["none", "fresh", "reset"]),
    help="Sandboxes are started when asked for (none), started ahead and used once (fresh), or"
    " reset and used again (reset).  [default: none for local, fresh for docker]",
)
task = click.option("--task", "pattern", metavar="GLOB", help="Only tasks whose name matches.")
json_output = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)
config = click.option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="The config.  [default: plimsoll.toml where it is there]",
)
assets = click.option(
    "--assets",
    type=PATH,
    metavar="DIR",
    help="What `plimsoll stage` put there stands in for the network.",
)
