"""Token ids and log probabilities in answers of the chat dialect.

The gateway requests them from the policy for its own record. An agent gets them only if it asked:
they are many times the size of its answer.
"""

from typing import Any

import msgspec

from plimsoll.gateway.completions import Answer, Chunk, Request
from plimsoll.gateway.dialects.encoding import encode

__all__ = ["TOKEN_FIELDS", "answer_token_fields", "prompt_token_fields", "without_tokens"]

TOKEN_FIELDS = ("logprobs", "token_ids", "token_versions", "prompt_token_ids")
"""The fields of a choice about its tokens."""

_LOGPROBS = b'},"logprobs":{'
"""Includes the end of the delta, so that the search cannot match inside it."""
_AFTER_LOGPROBS = b']},"finish_reason":'
_IDS = b'"token_ids":['
_VERSIONS = b',"token_versions":['
_NULL = msgspec.Raw(b"null")

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def prompt_token_fields(request: Request, answer: Answer) -> dict[str, Any]:
    """The fields about the prompt's tokens, in the first object of an answer."""
    tokens = answer.tokens
    if not request.wants_ids or tokens is None or tokens.prompt is None:
        return {}
    return {"prompt_token_ids": tokens.prompt}


def answer_token_fields(request: Request, answer: Answer) -> dict[str, Any]:
    """The fields about the answer's tokens, in the choice of a whole answer."""
    fields: dict[str, Any] = {}
    if request.wants_logprobs and (logprobs := _logprobs(answer)) is not None:
        fields["logprobs"] = logprobs
    if request.wants_ids and answer.tokens is not None:
        fields["token_ids"] = answer.tokens.answer
        if answer.tokens.versions:
            runs = [(str(version), count) for version, count in answer.tokens.versions]
            fields["token_versions"] = runs
    return fields


def _logprobs(answer: Answer) -> msgspec.Raw | None:
    if answer.logprobs is not None or answer.raw is None:
        return answer.logprobs
    return _CHOICES.decode(answer.raw["choices"])[0].get("logprobs")


def without_tokens(chunk: Chunk, request: Request) -> bytes:
    """A piece of a stream without the token fields that were not asked for.

    The field names are searched as bytes, from the end, which is much faster than parsing. They
    cannot be part of a text, where quotes are escaped. Only a piece in an unusual layout is parsed.
    """
    data: bytes | None = chunk.data
    if chunk.ids is not None and not request.wants_ids:
        data = _without_ids(data, has_versions=bool(chunk.versions))
    if data is not None and chunk.logprobs is not None and not request.wants_logprobs:
        data = _without_logprobs(data)
    return _parsed_without(chunk.data, request) if data is None else data


def _without_ids(data: bytes, *, has_versions: bool) -> bytes | None:
    at = data.rfind(_IDS)
    if at < 0:
        return None
    start = at + len(_IDS) - 1
    # An array of numbers ends at the first bracket.
    stop = data.find(b"]", start) + 1
    if has_versions:
        if not data.startswith(_VERSIONS, stop):
            return None
        stop = data.find(b"]]", stop) + 2
    return b"".join((data[:start], b"null", data[stop:]))


def _without_logprobs(data: bytes) -> bytes | None:
    stop = data.rfind(_AFTER_LOGPROBS)
    at = data.rfind(_LOGPROBS, 0, max(stop, 0))
    if at < 0:
        return None
    start = at + len(_LOGPROBS) - 1
    return b"".join((data[:start], b"null", data[stop + len(b"]}") :]))


def _parsed_without(data: bytes, request: Request) -> bytes:
    fields = _FIELDS.decode(data)
    choices = _CHOICES.decode(fields["choices"])
    for choice in choices:
        for name in TOKEN_FIELDS:
            is_requested = request.wants_logprobs if name == "logprobs" else request.wants_ids
            if name in choice and not is_requested:
                choice[name] = _NULL
    return encode({**fields, "choices": choices})
