"""Errors in OpenAI's format."""

from typing import Any

from plimsoll.gateway.completions import Refusal, RefusalKind
from plimsoll.gateway.dialects.encoding import encode

__all__ = ["openai_error", "openai_error_object"]

_TYPES: dict[RefusalKind, str] = {
    "unauthorized": "authentication_error",
    "ended": "authentication_error",
    "too_many": "rate_limit_error",
    "busy": "server_error",
    "upstream": "server_error",
    "timeout": "server_error",
}

_CODES: dict[RefusalKind, str] = {
    "unauthorized": "invalid_api_key",
    "ended": "session_ended",
    "not_found": "not_found",
    "wrong_method": "method_not_allowed",
    "too_large": "request_too_large",
    "too_many": "rate_limit_exceeded",
    "context_length": "context_length_exceeded",
    # Agents know this code, and end or compact. No other code tells them to stop.
    "budget": "context_length_exceeded",
    "unsupported": "unsupported_value",
    "busy": "overloaded",
    "upstream": "upstream_failed",
    "timeout": "upstream_timeout",
    "gave_up": "policy_failed",
}


def openai_error_object(refusal: Refusal) -> dict[str, Any]:
    """The value of `error`."""
    return {
        "message": refusal.message,
        "type": _TYPES.get(refusal.kind, "invalid_request_error"),
        "param": refusal.param,
        "code": _CODES.get(refusal.kind),
    }


def openai_error(refusal: Refusal) -> bytes:
    """The body of an error."""
    return encode({"error": openai_error_object(refusal)})
