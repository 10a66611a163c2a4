"""Errors in Anthropic's format."""

import re
from typing import Any

from plimsoll.gateway.completions import Refusal, RefusalKind
from plimsoll.gateway.dialects.encoding import encode

__all__ = ["anthropic_error"]

_TYPES: dict[RefusalKind, str] = {
    "unauthorized": "authentication_error",
    "ended": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "too_many": "rate_limit_error",
    "busy": "overloaded_error",
    "upstream": "api_error",
    "timeout": "timeout_error",
}

# The figures in servers' messages about a context that is too long. Clients distinguish a prompt
# that would fit with a smaller `max_tokens` from one that does not fit at all.
_LIMIT = re.compile(
    r"(?:context length(?: is| of)?(?: only)?|context size|model's context length) ?\(?(\d+)"
)
_PROMPT = re.compile(
    r"(\d+) (?:in the messages|input tokens|tokens from the input)|\((\d+) tokens\)"
)
_ASKED = re.compile(
    r"too large: (\d+)|(\d+) in the completion|(\d+) output tokens|(\d+) tokens for the completion"
)


def anthropic_error(refusal: Refusal) -> bytes:
    """The body of an error, and the data of an `error` event."""
    error: dict[str, Any] = {
        "type": _TYPES.get(refusal.kind, "invalid_request_error"),
        "message": _message(refusal),
    }
    return encode({"type": "error", "error": error})


def _message(refusal: Refusal) -> str:
    if refusal.kind == "context_length":
        return _too_long(refusal.message)
    return refusal.message


def _too_long(message: str) -> str:
    """The message that clients look for, with the figures if the server reported them."""
    limit, prompt, asked = (_figure(pattern, message) for pattern in (_LIMIT, _PROMPT, _ASKED))
    if limit is None or prompt is None:
        return f"prompt is too long: {message}"
    if asked and prompt < limit:
        return (
            f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > {limit}, "
            "decrease input length or `max_tokens` and try again"
        )
    return f"prompt is too long: {prompt} tokens > {limit} maximum"


def _figure(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return next((int(group) for group in found.groups() if group), None) if found else None
