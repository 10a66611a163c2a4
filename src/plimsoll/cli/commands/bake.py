"""`plimsoll bake`: install agents once into a layer that sandboxes mount read-only."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plimsoll.cli import options

if TYPE_CHECKING:
    from plimsoll.agents.layer.bake import BakeResult
    from plimsoll.agents.layer.layer import Component

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    the agents are in the folder
  2    bad usage, or an agent could not be installed
"""


@click.command(
    "bake", short_help="Install agents into a folder that sandboxes mount.", epilog=EPILOG
)
@click.argument("agents", nargs=-1, required=True, metavar="AGENT[@VERSION]...")
@click.option("--to", "folder", type=options.PATH, required=True, metavar="DIR",
              help="The layer folder, for runs with --agent-layer DIR.")  # fmt: skip
@click.option("--python", type=options.python_version, metavar="X.Y",
              help="The Python version of the images, for agents written in Python."
              "  [default: that of this host's system]")  # fmt: skip
@options.json_output
def command(agents: tuple[str, ...], folder: Path, python: str | None, as_json: bool) -> int:
    """Install agents with this host's npm and pip into a folder that sandboxes mount.

    AGENT is claude-code, codex, opencode, qwen-code, mini-swe-agent or `all`. Installed agents of
    the same version are kept.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.agents.layer.bake import bake
    from plimsoll.cli.terminal.console import console
    from plimsoll.cli.views.text import plain
    from plimsoll.tasks.assets.packages import host_python

    err = console(stderr=True)

    def say(text: str) -> None:
        err.print(plain(text), soft_wrap=True)

    made = bake(folder, _parts(agents), python or host_python(), say)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(made))
    else:
        _print_result(made, folder)
    return 0


def _parts(agents: tuple[str, ...]) -> "list[Component]":
    """The parts of the agents, each once. A version applies to the agent's own part."""
    from plimsoll.agents.registry import ADAPTERS
    from plimsoll.core.errors import UsageError

    parts: dict[str, Component] = {}
    for word in ADAPTERS if "all" in agents else agents:
        name, _, version = word.partition("@")
        if name not in ADAPTERS:
            known = ", ".join(ADAPTERS)
            raise UsageError(f"{name!r} cannot be baked; choose from {known}, or all")
        *others, own = ADAPTERS[name].components
        for part in (*others, own.with_version(version) if version else own):
            parts[part.name] = part
    return list(parts.values())


def _print_result(made: "BakeResult", folder: Path) -> None:
    from plimsoll.cli.terminal.console import console
    from plimsoll.cli.views.text import byte_size, plain

    out = console(stderr=False)
    for name, part in sorted(made.parts.items()):
        new = "installed now" if name in made.made else "present"
        fits = f", Python {part.python}" if part.python else ""
        line = f"{name} {part.version} · {byte_size(part.size)}{fits} · {new}"
        out.print(plain(line), soft_wrap=True)
    out.print(plain(f"use it: --agent-layer {folder}"), soft_wrap=True)
