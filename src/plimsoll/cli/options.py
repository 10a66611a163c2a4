"""Options that several commands share."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "AGENTS",
    "BACKENDS",
    "FILE",
    "PATH",
    "assets",
    "backend",
    "complete_run",
    "completes",
    "concurrency",
    "config",
    "engine",
    "json_output",
    "keep_going",
    "pool",
    "python_version",
    "run",
    "task",
    "workers",
]


class _Path(click.Path):
    """A path option. An empty path, as from an unset variable, is an error: the system would use
    the current folder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if not os.fspath(value).strip():
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
FILE = _Path(path_type=Path, dir_okay=False)


def python_version(text: str) -> str:
    """The type of an option with a Python version."""
    if re.fullmatch(r"\d+\.\d+", text) is None:
        raise click.BadParameter(f"{text!r} is not a Python version: write it as 3.12")
    return text


def completes(
    *words: str,
) -> Callable[[click.Context, click.Parameter, str], "list[CompletionItem] | list[str]"]:
    """The shell completion of a parameter with one of these words as its value."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def complete_run(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """The shell completion of a RUN: the names of runs below runs/, and folders."""
    from click.shell_completion import CompletionItem

    names = sorted(file.parent.name for file in Path("runs").glob("*/config.toml"))
    runs = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    # First: in bash, an item of this type discards the items before it.
    return [CompletionItem(incomplete, type="dir"), *runs]


AGENTS = (
    *("oracle", "nop", "shell"),
    *("claude-code", "codex", "opencode", "qwen-code", "mini-swe-agent"),
)
"""The names of agents, without the import of their modules."""
BACKENDS = ("local", "docker")

run = click.argument("run", shell_complete=complete_run)
backend = click.option(
    "--backend",
    default="local",
    show_default=True,
    metavar="NAME",
    shell_complete=completes(*BACKENDS),
    help="The backend of sandboxes: local or docker.",
)
concurrency = click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Concurrent trials.  [default: one for each core, at least 2]",
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
    help="The engine that starts the workers: processes of this host, or Ray actors."
    "  [default: process]",
)
pool = click.option(
    "--pool",
    type=click.Choice(["none", "fresh", "reset"]),
    help="Start sandboxes on demand (none), ahead for one use (fresh), or reset and reuse them"
    " (reset).  [default: none for local, fresh for docker]",
)
task = click.option("--task", "pattern", metavar="GLOB", help="Use only tasks whose name matches.")
json_output = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)
config = click.option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="The config file.  [default: plimsoll.toml, if it exists]",
)
assets = click.option(
    "--assets",
    type=PATH,
    metavar="DIR",
    help="The folder that `plimsoll stage` filled, used instead of the network.",
)
keep_going = click.option(
    "--keep-going", is_flag=True, help="Run to the end even if the breaker trips."
)
