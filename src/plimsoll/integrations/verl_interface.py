"""The part of verl that the adapter uses, and a check that the installed version has it."""

from importlib import import_module, metadata
from typing import Any, Protocol, cast

from plimsoll.core.errors import UsageError

__all__ = ["AgentLoop", "agent_loop", "check_interface"]

_KNOWN = "0.9.1"
_FIELDS = {"prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score"}


class AgentLoop(Protocol):
    """The part of verl's module that is used."""

    AgentLoopOutput: Any
    AgentLoopMetrics: Any


def agent_loop() -> AgentLoop:
    """Import verl's module on first use: verl is slow to import."""
    return cast(AgentLoop, import_module("verl.experimental.agent_loop.agent_loop"))


def check_interface() -> None:
    """Raise `UsageError` if verl is missing or its agent loop interface differs."""
    try:
        version = metadata.version("verl")
        made = agent_loop().AgentLoopOutput
    except (metadata.PackageNotFoundError, ImportError, AttributeError) as error:
        raise UsageError(
            f"there is no agent loop of verl: install verl {_KNOWN} ({error})"
        ) from error
    if missing := _FIELDS - made.model_fields.keys():
        names = ", ".join(sorted(missing))
        raise UsageError(f"verl {version} has other agent loops than {_KNOWN}: no {names}")
