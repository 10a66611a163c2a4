"""Agents by the name that a person gives on the command line."""

from plimsoll.agents.nop import Nop
from plimsoll.agents.oracle import Oracle
from plimsoll.agents.protocol import Agent
from plimsoll.core.errors import UsageError

__all__ = ["AGENTS", "make_agent"]

_MAKERS: dict[str, type[Oracle] | type[Nop]] = {"oracle": Oracle, "nop": Nop}

AGENTS = tuple(_MAKERS)


def make_agent(name: str) -> Agent:
    """The agent of that name."""
    if name not in _MAKERS:
        raise UsageError(f"there is no agent {name!r}; the agents are {', '.join(AGENTS)}")
    return _MAKERS[name]()
