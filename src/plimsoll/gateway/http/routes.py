"""Routes: maps a path below a session's address to an action and a dialect."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.dialects.registry import CHAT, DIALECTS, MESSAGES, speaks_anthropic

__all__ = ["Endpoint", "Route", "find_route"]

Action = Literal["exchange", "count", "models"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An action below a session's address."""

    action: Action
    method: str
    dialect: Dialect


class Route(msgspec.Struct, frozen=True):
    """The session and endpoint of a path."""

    session: str
    path: str
    endpoint: Endpoint | None
    """None if the path is unknown."""


_ENDPOINTS = {path: Endpoint("exchange", "POST", dialect) for path, dialect in DIALECTS.items()}
_ENDPOINTS["/v1/messages/count_tokens"] = Endpoint("count", "POST", MESSAGES)
_OPENAI_MODELS = Endpoint("models", "GET", CHAT)
_ANTHROPIC_MODELS = Endpoint("models", "GET", MESSAGES)


def find_route(path: str, headers: Mapping[str, str]) -> Route | None:
    """The route of `/s/SESSION/...`; None for paths outside of sessions."""
    if not path.startswith("/s/"):
        return None
    session, slash, rest = path[3:].partition("/")
    rest = slash + rest
    endpoint = _ENDPOINTS.get(rest)
    if endpoint is None and (rest == "/v1/models" or rest.startswith("/v1/models/")):
        endpoint = _ANTHROPIC_MODELS if speaks_anthropic(headers) else _OPENAI_MODELS
    return Route(session, rest, endpoint)
