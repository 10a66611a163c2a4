"""The wire format of the chat server: request fields, and answers like vLLM's, with token ids, log
probabilities and versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.core.versions import Version
from plimsoll.gateway.chat_server.inference_engine import RequestError, SamplingParams
from plimsoll.gateway.upstreams.answer_fields import ABSENT

__all__ = [
    "RequestFields",
    "TokenOptions",
    "answer_head",
    "error_body",
    "read_fields",
    "read_messages",
    "read_tools",
    "token_fields",
    "usage_of",
]

Count = Annotated[int, msgspec.Meta(ge=1)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]


class _Format(msgspec.Struct):
    type: str = "text"


class RequestFields(msgspec.Struct):
    """The fields of a request that are read; others are ignored."""

    messages: msgspec.Raw
    model: str = ""
    tools: msgspec.Raw = ABSENT
    tool_choice: msgspec.Raw = ABSENT
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    response_format: _Format | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def sampling(self) -> SamplingParams:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            limit=self.limit,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0) if self.top_k is not None else None,
            seed=self.seed,
            stop=tuple(text for text in stop if text),
        )


_fields = msgspec.json.Decoder(RequestFields)
_messages = msgspec.json.Decoder(list[dict[str, object]])
_tools = msgspec.json.Decoder(list[object] | None)


def read_fields(body: bytes) -> RequestFields:
    """Parse a request. Raises `RequestError` if it is invalid or asks for an unsupported
    feature."""
    try:
        fields = _fields.decode(body)
    except DECODE_ERRORS as error:
        raise RequestError(f"invalid request: {error}") from error
    if fields.n not in (None, 1):
        raise RequestError("n above 1 is not supported; send several requests")
    if fields.response_format is not None and fields.response_format.type != "text":
        raise RequestError("response_format is not supported")
    if bytes(fields.tool_choice) not in (b"", b"null", b'"auto"', b'"none"'):
        raise RequestError("tool_choice must be auto or none: forced calls are not supported")
    return fields


def read_messages(fields: RequestFields) -> list[dict[str, object]]:
    try:
        messages = _messages.decode(fields.messages)
    except DECODE_ERRORS as error:
        raise RequestError(f"invalid messages: {error}") from error
    if not messages:
        raise RequestError("messages are empty")
    return messages


def read_tools(fields: RequestFields) -> list[object] | None:
    """The tools; None if there are none, or if `tool_choice` is none."""
    if not bytes(fields.tools) or bytes(fields.tool_choice) == b'"none"':
        return None
    try:
        return _tools.decode(fields.tools) or None
    except DECODE_ERRORS as error:
        raise RequestError(f"invalid tools: {error}") from error


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """The token fields that a request asks for, besides the text."""

    ids: bool = True
    logprobs: bool = True


def answer_head(kind: str, id: str, model: str, created: int) -> dict[str, object]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": created, "model": model}


def usage_of(prompt: int, answer: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }


def token_fields(
    options: TokenOptions,
    finish: str | None,
    ids: list[int],
    logprobs: list[float],
    texts: Sequence[str],
    versions: Sequence[tuple[Version, int]] = (),
) -> dict[str, object]:
    """The fields of a choice about its tokens and its end, in the order that inference servers use.

    `token_versions` is present if the versions are known.
    """
    fields: dict[str, object] = {}
    if options.logprobs:
        entries = zip(texts, logprobs, strict=True)
        fields["logprobs"] = {"content": [_entry(text, value) for text, value in entries]}
    fields["finish_reason"] = finish
    if options.ids:
        fields["token_ids"] = ids
        if versions:
            fields["token_versions"] = [(str(version), count) for version, count in versions]
    return fields


def error_body(status: int, message: str) -> dict[str, object]:
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return {"error": {"message": message, "type": kind, "code": status}}


def _entry(text: str, value: float) -> dict[str, object]:
    return {
        "token": text,
        "logprob": value,
        "bytes": list(text.encode("utf-8", "replace")),
        "top_logprobs": [],
    }
