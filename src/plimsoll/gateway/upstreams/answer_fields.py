"""The fields of an OpenAI-compatible answer that are parsed; others are skipped."""

from typing import Annotated

import msgspec

__all__ = [
    "ABSENT",
    "Choice",
    "ChunkBody",
    "ChunkChoice",
    "Function",
    "Logprob",
    "LogprobValue",
    "LogprobValues",
    "Logprobs",
    "MessageFields",
    "UsageFields",
    "WholeBody",
    "WireCall",
]

ABSENT = msgspec.Raw()
"""The default of fields that stay raw. msgspec decodes only null for a union of `Raw` and None."""

Index = Annotated[int, msgspec.Meta(ge=0, le=1024)]
Size = Annotated[int, msgspec.Meta(ge=0)]


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class WireCall(msgspec.Struct):
    """A tool call, or a piece of one in a stream."""

    function: Function
    id: str | None = None
    index: Index = 0


class MessageFields(msgspec.Struct):
    """A message, or a piece of one. Older and newer servers name the reasoning differently."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[WireCall] | None = None
    refusal: str | None = None


class LogprobValue(msgspec.Struct, gc=False):
    """An answer has thousands of these, without references to other objects: exempt from garbage
    collection."""

    logprob: float


class LogprobValues(msgspec.Struct):
    """Log probabilities without other fields: each field to look for costs time."""

    content: list[LogprobValue]


class Logprob(LogprobValue, gc=False):
    id: int | None = None
    """The token id, for a server (llama.cpp) that reports it here and not in `token_ids`."""


class Logprobs(msgspec.Struct):
    content: list[Logprob] | None = None


class Choice(msgspec.Struct):
    message: MessageFields
    index: int | None = None
    finish_reason: str | None = None
    prompt_token_ids: msgspec.Raw = ABSENT
    token_ids: list[int] | None = None
    token_versions: list[tuple[str, Size]] | None = None
    """Runs of (version, number of tokens), if the server reports them."""
    logprobs: Logprobs | None = None


class ChunkChoice(msgspec.Struct):
    delta: MessageFields | None = None
    index: int | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    token_versions: list[tuple[str, Size]] | None = None
    logprobs: Logprobs | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class AnswerDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class UsageFields(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: AnswerDetails | None = None


class WholeBody(msgspec.Struct):
    id: str | None = None
    choices: list[Choice] = []
    usage: UsageFields | None = None


class ChunkBody(msgspec.Struct):
    choices: list[ChunkChoice] = []
    usage: UsageFields | None = None
    error: msgspec.Raw = ABSENT
