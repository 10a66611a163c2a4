"""Routes: maps a path below a session's address to an action and a dialect; the list of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from plimsoll.gateway.dialects.encoding import encode
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.dialects.registry import CHAT, DIALECTS, MESSAGES, speaks_anthropic

__all__ = ["Endpoint", "Route", "find_route", "write_model", "write_models"]

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


# The release time of a policy is unknown, but both formats require one.
_CREATED = 0
_CREATED_AT = "1970-01-01T00:00:00Z"


def write_models(names: Sequence[str], *, anthropic: bool) -> bytes:
    """The list of all models."""
    if anthropic:
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
        page = {"first_id": None, "last_id": None, "has_more": False} | ends
        return encode({"data": [_anthropic(name) for name in names]} | page)
    return encode({"object": "list", "data": [_openai(name) for name in names]})


def write_model(name: str, *, anthropic: bool) -> bytes:
    return encode(_anthropic(name) if anthropic else _openai(name))


def _openai(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "plimsoll"}


def _anthropic(name: str) -> dict[str, object]:
    return {"type": "model", "id": name, "display_name": name, "created_at": _CREATED_AT}
