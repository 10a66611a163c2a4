"""Requests and answers in the internal form, between a dialect and an upstream.

The form is that of Chat Completions, which every upstream speaks. Only the fields that the gateway
uses are parsed; the rest stays raw bytes. A request in the chat dialect keeps its messages as the
bytes that the agent sent.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from plimsoll.core.versions import Version
from plimsoll.gateway.body_prefixes import BodyPrefix
from plimsoll.trajectories.message_tree import History
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.records import Finish
from plimsoll.trajectories.reported_tokens import TokenIds

__all__ = [
    "Answer",
    "CallDelta",
    "Chunk",
    "History",
    "NoHistory",
    "Refusal",
    "RefusalKind",
    "Request",
    "Usage",
]


class NoHistory:
    """An empty history: for requests whose messages are not read, or no longer needed."""

    def __len__(self) -> int:
        return 0

    def key(self, index: int) -> bytes:
        raise IndexError(index)

    def message(self, index: int) -> Message:
        raise IndexError(index)


class Request(msgspec.Struct, kw_only=True):
    """A request of an agent to the policy."""

    model: str
    """The model name that the agent requested; answers repeat it."""
    history: History
    messages: msgspec.Raw
    """The messages as the JSON array to send to an upstream."""
    prefix: BodyPrefix | None = None
    """The parsed beginning of the body, from which a later body can be read on."""
    tools: msgspec.Raw | None = None
    """The tools as a JSON array in the form of Chat Completions, if there are any."""
    settings: dict[str, msgspec.Raw] = {}
    """All other fields to forward, in the form of Chat Completions: temperature, stop, max_tokens,
    tool_choice, response_format, and fields that the gateway does not interpret."""
    continues: bool = False
    """Whether the last message is the beginning of the answer (a prefill)."""
    stream: bool = False
    wants_usage: bool = False
    """Whether a stream of the chat dialect ends with its usage."""
    wants_logprobs: bool = False
    """Whether the agent asked for log probabilities."""
    wants_ids: bool = False
    """Whether the agent asked for token ids."""
    wants_reasoning: bool = True
    """Whether the agent receives the policy's reasoning, in dialects where it can choose."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts reported by an upstream."""

    prompt: int
    answer: int
    cached: int = 0
    reasoning: int = 0


class Answer(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    message: Message
    finish: Finish
    usage: Usage | None = None
    tokens: TokenIds | None = None
    raw: dict[str, msgspec.Raw] | None = None
    """The fields of the upstream's answer, if it came as one object. The chat dialect forwards
    them, without the token fields that the agent did not ask for."""
    logprobs: msgspec.Raw | None = None
    """The log probabilities cut out of `raw`, if they were cut out before parsing."""


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. The first piece of a call carries its id and name."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Chunk(msgspec.Struct):
    """A piece of a streamed answer."""

    data: bytes
    """The JSON that the upstream sent, without the `data: ` prefix."""
    text: str = ""
    reasoning: str = ""
    calls: Sequence[CallDelta] = ()
    finish: Finish | None = None
    usage: Usage | None = None
    prompt_ids: list[int] | msgspec.Raw | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    versions: tuple[tuple[Version, int], ...] = ()
    only_usage: bool = False
    """The piece holds only the usage. It is dropped for agents that did not ask for usage."""


RefusalKind = Literal[
    "bad_request",
    "unauthorized",
    "not_found",
    "wrong_method",
    "too_large",
    "too_many",
    "context_length",
    "budget",
    "ended",
    "unsupported",
    "busy",
    "upstream",
    "timeout",
    "gave_up",
]
"""bad_request     the body is invalid in this dialect
too_many        more concurrent requests than the session allows
context_length  the conversation is longer than the policy, or the session, allows
budget          turns, tokens or time of the session are used up
ended           the session has ended
busy            the upstream is overloaded, or no replica is up
upstream        the upstream failed, or its answer is invalid
timeout         the upstream did not answer in time
gave_up         the upstream has failed too often
"""


MAX_MESSAGE_CHARS = 2_000
"""The limit on a refusal's message, in characters: it may quote the request, and it is recorded."""


class Refusal(Exception):
    """A request that is answered with an error. Each dialect has its own error format."""

    def __init__(self, kind: RefusalKind, message: str, *, param: str | None = None) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = f"{message[:MAX_MESSAGE_CHARS]}…"
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.message = message
        self.param = param if param is None else param[:MAX_MESSAGE_CHARS]
        """The invalid field of the request, if the error is about one field."""
