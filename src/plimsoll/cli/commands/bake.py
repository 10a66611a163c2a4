"""`plimsoll bake`: install agents once, for sandboxes that see them read-only."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plimsoll.cli import options

if TYPE_CHECKING:
    from plimsoll.agents.layer.bake import BakeResult
    from plimsoll.agents.layer.components import Component

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    the agents are in the folder
  2    bad usage, or an agent could not be installed
"""


@click.command("bake", epilog=EPILOG)
@click.argument("agents", nargs=-1, required=True, metavar="AGENT[@VERSION]...")
@click.option("--to", "folder", type=options.PATH, required=True, metavar="DIR",
              help="The layer: give it to runs with --agent-layer DIR.")  # fmt: skip
@click.option("--python", type=options.python_version, metavar="X.Y",
              help="The Python of the images, for agents written in it."
              "  [default: that of this host's system]")  # fmt: skip
@options.json_output
def command(agents: tuple[str, ...], folder: Path, python: str | None, as_json: bool) -> int:
    """Install agents with this host's npm and pip into a folder that sandboxes mount.

    The agents are claude-code, codex, opencode, qwen-code and mini-swe-agent; `all` is all of
    them. Started again, it installs only what is missing or of another version.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.agents.layer.bake import bake
    from plimsoll.cli.views.evaluation import console, plain
    from plimsoll.tasks.assets.packages import host_python

    err = console(stderr=True)

    def say(text: str) -> None:
        err.print(plain(text), soft_wrap=True)

    made = bake(folder, _parts(agents), python or host_python(), say)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(made))
    else:
        _close(made, folder)
    return 0


def _parts(agents: tuple[str, ...]) -> "list[Component]":
    """What the agents are made of, each part once. A version is that of the agent's own part."""
    from plimsoll.agents.registry import ADAPTERS
    from plimsoll.core.errors import UsageError

    parts: dict[str, Component] = {}
    for word in ADAPTERS if "all" in agents else agents:
        name, _, version = word.partition("@")
        if name not in ADAPTERS:
            known = ", ".join(ADAPTERS)
            raise UsageError(f"{name!r} cannot be baked; those that can are {known}, or all")
        *others, own = ADAPTERS[name].components
        for part in (*others, own.with_version(version) if version else own):
            parts[part.name] = part
    return list(parts.values())


def _close(made: "BakeResult", folder: Path) -> None:
    from plimsoll.cli.commands.stage import human
    from plimsoll.cli.views.evaluation import console, plain

    out = console(stderr=False)
    for name, part in sorted(made.parts.items()):
        new = "installed now" if name in made.made else "there"
        fits = f", Python {part.python}" if part.python else ""
        line = f"{name} {part.version} · {human(part.size)}{fits} · {new}"
        out.print(plain(line), soft_wrap=True)
    out.print(plain(f"use it: --agent-layer {folder}"), soft_wrap=True)
