"""Letting go of a request's body once the upstream has it and nothing can be asked again."""

import msgspec

from plimsoll.gateway.forms import NoHistory, Request

__all__ = ["forget"]


_HISTORY = NoHistory()
_NOTHING = msgspec.Raw(b"[]")


def forget(request: Request) -> None:
    """Drop all that refers to the body. What is left says how the answer is written."""
    stop = request.settings.get("stop")
    request.history = _HISTORY
    request.messages = _NOTHING
    request.tools = None
    request.opening = None
    # A copy, since what was cut out of a body keeps all of it.
    request.settings = {"stop": stop.copy()} if stop is not None else {}
