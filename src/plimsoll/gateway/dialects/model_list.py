"""The list of models, in OpenAI's and Anthropic's formats."""

from collections.abc import Sequence

from plimsoll.gateway.dialects.encoding import encode

__all__ = ["write_model", "write_models"]

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
