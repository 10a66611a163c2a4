"""As much of verl as the adapter uses, and whether the installed one has it."""

from importlib import import_module, metadata
from typing import Any, Protocol, cast

from plimsoll.core.errors import UsageError

__all__ = ["AgentLoop", "agent_loop", "check_interface"]

_KNOWN = "0.9.1"
_FIELDS = {"prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score"}


class AgentLoop(Protocol):
    """As much of verl's module as is used."""

    AgentLoopOutput: Any
    AgentLoopMetrics: Any


def agent_loop() -> AgentLoop:
    """Imported when it is needed: verl takes a while."""
    return cast(AgentLoop, import_module("verl.experimental.agent_loop.agent_loop"))


def check_interface() -> None:
    """Raises `UsageError` where verl is missing, or its agent loops are others than these."""
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
