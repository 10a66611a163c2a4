"""Failures of an upstream: the refusal for the agent, and whether a retry is safe.

A retry is safe if nothing was generated or delivered: connection refused or cut, 429, 502, 503. It
is not safe after a 500, an invalid answer or a timeout: the request itself may be the cause.
"""

import asyncio
import os

import aiohttp
import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.completions import Refusal, RefusalKind
from plimsoll.gateway.upstreams.answer_fields import ABSENT

__all__ = [
    "UpstreamFailure",
    "failure_from_event",
    "failure_from_exception",
    "failure_from_status",
    "invalid_answer",
]

TOO_LONG_PHRASES = (
    "maximum context length",
    "context_length_exceeded",
    "exceed_context_size",
    "exceeds the available context size",
    "context size has been exceeded",
    "exceed context window",
    "longer than the model's context length",
    "exceeds the model's maximum context",
    "exceeds the maximum length",
    "maximum allowed length",
    "exceeds the context",
    "longer than the maximum model length",
    "input is too long",
    "prompt is too long",
)
"""Phrases of servers (OpenAI, vLLM, llama.cpp, SGLang, transformers, TGI) for a conversation that
is too long. There is no common error code.
"""

MAX_SERVER_CHARS = 1_500
"""The limit on a server's message, in characters. It is below the limit of a refusal, so that the
advice after it is not cut off.
"""


class UpstreamFailure(Refusal):
    """A refusal caused by an upstream, with the facts needed to choose between replicas."""

    def __init__(
        self,
        kind: RefusalKind,
        message: str,
        *,
        retryable: bool = False,
        replica_fault: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(kind, message)
        self.retryable = retryable
        """Whether the same request may be retried, on this or another replica."""
        self.replica_fault = replica_fault
        """Whether the failure counts against the replica rather than the request."""
        self.retry_after = retry_after
        """The wait that the server asked for, in seconds."""


class _Error(msgspec.Struct):
    message: str = ""
    type: str | None = None
    code: int | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error | str | None = None
    message: str = ""
    detail: msgspec.Raw = ABSENT
    type: str | None = None
    code: int | str | None = None


_decoder = msgspec.json.Decoder(_ErrorBody)


def invalid_answer(where: str, what: str) -> UpstreamFailure:
    """The failure for an answer that cannot be used."""
    return UpstreamFailure(
        "upstream",
        f"the policy at {where} sent an answer that cannot be used: {what}",
        replica_fault=True,
    )


def failure_from_status(
    where: str, status: int, body: bytes, retry_after: str | None = None
) -> UpstreamFailure:
    """The failure for an HTTP status; `body` is the server's error body."""
    error_fields = _read_error(body)
    summary = f"the policy at {where} answered {status}: {error_fields.message or 'no message'}"
    if _is_too_long(error_fields):
        return UpstreamFailure("context_length", error_fields.message or summary)
    if status in (401, 403):
        return UpstreamFailure(
            "upstream", f"{summary}. Check the key of the upstream.", replica_fault=True
        )
    if status == 404:
        hint = "Check its URL (it ends in /v1) and the model's name."
        return UpstreamFailure("upstream", f"{summary}. {hint}", replica_fault=True)
    if status in (429, 503):
        # A server that limits its load is healthy; a 503 may mean that it is starting or stopping.
        replica_fault = status == 503
        return UpstreamFailure(
            "busy",
            summary,
            retryable=True,
            replica_fault=replica_fault,
            retry_after=_seconds(retry_after),
        )
    if 400 <= status < 500 and status not in (408, 409):
        return UpstreamFailure("bad_request", error_fields.message or summary)
    return UpstreamFailure("upstream", summary, retryable=status == 502, replica_fault=True)


def failure_from_event(where: str, error: bytes) -> UpstreamFailure:
    """The failure for an error inside a stream, after its status was sent."""
    error_fields = _read_error(b'{"error":' + error + b"}")
    code = error_fields.code if isinstance(error_fields.code, int) else 500
    return failure_from_status(where, code, b'{"error":' + error + b"}")


def failure_from_exception(where: str, error: BaseException) -> UpstreamFailure:
    """The failure for a connection error."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        message = f"the policy at {where} did not accept a connection in time"
        return UpstreamFailure("timeout", message, retryable=True, replica_fault=True)
    if isinstance(error, asyncio.TimeoutError):
        return UpstreamFailure(
            "timeout", f"the policy at {where} did not answer in time", replica_fault=True
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        message = f"the certificate of the policy at {where} is not trusted"
        return UpstreamFailure("upstream", message, replica_fault=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        message = f"the policy at {where} cannot be reached: {_reason(error.os_error)}"
        return UpstreamFailure("upstream", message, retryable=True, replica_fault=True)
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
        message = f"the policy at {where} closed the connection before its answer was complete"
        return UpstreamFailure("upstream", message, retryable=True, replica_fault=True)
    return invalid_answer(where, f"it does not speak HTTP ({type(error).__name__})")


def _reason(error: OSError) -> str:
    """The system's message: asyncio's own repeats the address."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _read_error(body: bytes) -> _Error:
    """The server's error, in any of the common formats."""
    try:
        body_fields = _decoder.decode(body)
    except DECODE_ERRORS:
        return _Error(message=_cut(body.decode("utf-8", "replace").strip()))
    if isinstance(body_fields.error, str):
        return _Error(message=_cut(body_fields.error))
    if body_fields.error is not None:
        return _Error(
            _cut(body_fields.error.message), body_fields.error.type, body_fields.error.code
        )
    message = body_fields.message or bytes(body_fields.detail).decode("utf-8", "replace")
    return _Error(_cut(message), body_fields.type, body_fields.code)


def _cut(message: str) -> str:
    return message if len(message) <= MAX_SERVER_CHARS else f"{message[:MAX_SERVER_CHARS]}…"


def _is_too_long(error_fields: _Error) -> bool:
    text = f"{error_fields.type} {error_fields.code} {error_fields.message}".lower()
    return any(phrase in text for phrase in TOO_LONG_PHRASES)


def _seconds(retry_after: str | None) -> float | None:
    """`Retry-After` in seconds. Inference servers do not use its date form."""
    try:
        return max(0.0, float(retry_after)) if retry_after is not None else None
    except ValueError:
        return None
