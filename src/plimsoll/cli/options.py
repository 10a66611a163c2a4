"""Options that several commands share, each worded once."""

from pathlib import Path

import click

__all__ = ["assets", "backend", "concurrency", "config", "json_output", "pool", "task"]

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
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The config.  [default: plimsoll.toml where it is there]",
)
assets = click.option(
    "--assets",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="What `plimsoll stage` put there stands in for the network.",
)
