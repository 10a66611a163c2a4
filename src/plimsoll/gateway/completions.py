"""The one form that requests and answers have between a dialect and an upstream.

The form is that of Chat Completions, since every upstream speaks it, cut into the pieces that
somebody looks at; the rest stays the bytes that it came as. A piece that is not changed is
not parsed: a request of the chat dialect keeps its messages as the bytes that the agent sent.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from plimsoll.core.versions import Version
from plimsoll.gateway.body_prefixes import BodyPrefix
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.records import Finish

__all__ = [
    "Answer",
    "CallDelta",
    "Chunk",
    "History",
    "NoHistory",
    "Refusal",
    "RefusalKind",
    "Request",
    "TokenIds",
    "Usage",
]


class History(Protocol):
    """The messages of a request, read one by one only where they are not known yet."""

    def __len__(self) -> int: ...

    def key(self, index: int) -> bytes:
        """Sixteen bytes that are equal where the message came as the same bytes."""
        ...

    def message(self, index: int) -> Message: ...


class NoHistory:
    """For a request whose messages nobody looks at, or not any more."""

    def __len__(self) -> int:
        return 0

    def key(self, index: int) -> bytes:
        raise IndexError(index)

    def message(self, index: int) -> Message:
        raise IndexError(index)


class Request(msgspec.Struct, kw_only=True):
    """What an agent asks of the policy."""

    model: str
    """The name that the agent asked for; answers carry it back."""
    history: History
    messages: msgspec.Raw
    """The same messages, as the JSON array that an upstream is sent."""
    opening: BodyPrefix | None = None
    """How the body begins, where a later one may be read from there on."""
    tools: msgspec.Raw | None = None
    """The JSON array of tools in the form of Chat Completions, where there are any."""
    settings: dict[str, msgspec.Raw] = {}
    """Everything else that is sent on, in the form of Chat Completions: temperature, stop,
    max_tokens, tool_choice, response_format, and fields that are not known here."""
    continues: bool = False
    """Whether the last message is the beginning of the answer."""
    stream: bool = False
    wants_usage: bool = False
    """Whether a stream of the chat dialect is to end with its usage."""
    wants_logprobs: bool = False
    """Whether the agent itself asked for log probabilities."""
    wants_ids: bool = False
    """Whether it asked for token ids."""
    wants_reasoning: bool = True
    """Whether the agent is to see what the policy thought, in dialects that ask for it."""


class Usage(msgspec.Struct, frozen=True):
    """What an upstream counted."""

    prompt: int
    answer: int
    cached: int = 0
    reasoning: int = 0


class TokenIds(msgspec.Struct, frozen=True):
    """The ids that an engine returned, unchanged."""

    prompt: list[int] | msgspec.Raw | None
    """As the JSON that the engine wrote, where nobody has read it."""
    answer: list[int]
    logprobs: list[float] | None
    versions: tuple[tuple[Version, int], ...] = ()
    """Which version generated how many, where the upstream says it."""


class Answer(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    message: Message
    finish: Finish
    usage: Usage | None = None
    tokens: TokenIds | None = None
    raw: dict[str, msgspec.Raw] | None = None
    """The upstream's answer by its fields, where it came as one object: the chat dialect
    sends it on without what the agent did not ask for."""
    logprobs: msgspec.Raw | None = None
    """What was cut out of `raw`, where the upstream returned many."""


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. The first of a call carries its id and name."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Chunk(msgspec.Struct):
    """A piece of a streamed answer."""

    data: bytes
    """The JSON that the upstream sent, without `data: `."""
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
    """Holds nothing but the usage: for agents that did not ask for it, it is left out."""


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
"""bad_request     the body is not what the dialect asks for
too_many        more requests at once than the session may have
context_length  the conversation is longer than the policy, or the session, allows
budget          turns, tokens or time of the session are used up
ended           the session is over
busy            the upstream is overloaded, or no replica is up
upstream        the upstream failed, or answered with garbage
timeout         the upstream did not answer in time
gave_up         the upstream has failed too often to be asked again
"""


MAX_MESSAGE_CHARS = 2_000
"""Characters of a refusal's message. It may quote the request, and each is recorded."""


class Refusal(Exception):
    """A request that gets an error as its answer. Each dialect has its own shape for it."""

    def __init__(self, kind: RefusalKind, message: str, *, param: str | None = None) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = f"{message[:MAX_MESSAGE_CHARS]}…"
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.message = message
        self.param = param if param is None else param[:MAX_MESSAGE_CHARS]
        """The field of the request that is at fault, where it is one."""
