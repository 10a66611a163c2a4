"""The agents by their names on the command line."""

from pathlib import Path

from plimsoll.agents.command_line.adapter import Adapter
from plimsoll.agents.command_line.agent import CommandLineAgent
from plimsoll.agents.command_line.claude_code import ClaudeCode
from plimsoll.agents.command_line.codex import Codex
from plimsoll.agents.command_line.mini_swe_agent import MiniSweAgent
from plimsoll.agents.command_line.opencode import OpenCode
from plimsoll.agents.command_line.qwen_code import QwenCode
from plimsoll.agents.nop import Nop
from plimsoll.agents.oracle import Oracle
from plimsoll.agents.protocol import Agent
from plimsoll.agents.shell import Shell
from plimsoll.core.errors import UsageError

__all__ = ["ADAPTERS", "AGENTS", "make_agent"]

_BUILT_IN: dict[str, type[Oracle] | type[Nop] | type[Shell]] = {
    "oracle": Oracle,
    "nop": Nop,
    "shell": Shell,
}

ADAPTERS: dict[str, Adapter] = {
    adapter.name: adapter
    for adapter in (ClaudeCode(), Codex(), OpenCode(), QwenCode(), MiniSweAgent())
}
"""The command-line agents."""

AGENTS = (*_BUILT_IN, *ADAPTERS)


def make_agent(name: str, *, layer: Path | None = None) -> Agent:
    """Create an agent by name. `layer` is the folder that `plimsoll bake` made."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if name in ADAPTERS:
        return CommandLineAgent(ADAPTERS[name], layer)
    raise UsageError(f"there is no agent {name!r}; the agents are {', '.join(AGENTS)}")
