"""What a dialect does: read requests, write answers, streams and errors in its own shape."""

from collections.abc import Sequence
from typing import Protocol

from plimsoll.gateway.body_prefixes import BodyPrefix
from plimsoll.gateway.completions import (
    Answer,
    Chunk,
    Refusal,
    RefusalKind,
    Request,
)

__all__ = ["STATUSES", "Dialect", "EventStream"]

STATUSES: dict[RefusalKind, int] = {
    "bad_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "wrong_method": 405,
    "too_large": 413,
    "too_many": 429,
    "context_length": 400,
    "budget": 400,
    "ended": 401,
    "unsupported": 400,
    "busy": 503,
    "upstream": 502,
    "timeout": 504,
    "gave_up": 400,
}
"""The status of each refusal, in every dialect.

A used-up budget is a 400, and so is a policy that was given up: clients retry 429 and 5xx, and
there is nothing to wait for.
"""


class EventStream(Protocol):
    """Writes one streamed answer as server-sent events. Made for one request."""

    def start(self) -> bytes:
        """What is sent before the policy has said anything; may be empty."""
        ...

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """Pieces that came together are written together. Never the last event of the stream."""
        ...

    def end(self, answer: Answer) -> bytes:
        """The rest of the stream, once the whole answer is recorded."""
        ...

    def whole(self, answer: Answer) -> bytes:
        """All of the stream, where nothing but pings was sent: for a retry, or an upstream that
        does not stream."""
        ...

    def ping(self) -> bytes:
        """Something that clients ignore, to keep a connection open while nothing comes."""
        ...

    def fail(self, refusal: Refusal) -> bytes:
        """An error after the stream has begun."""
        ...


class Dialect(Protocol):
    """A wire format. It holds no state."""

    @property
    def name(self) -> str: ...

    def read(self, body: bytes, known: BodyPrefix | None = None, /) -> Request:
        """Raises `Refusal` for what cannot be asked. `known`: what the body begins with, where
        that was read before."""
        ...

    def write(self, request: Request, answer: Answer) -> bytes:
        """The body of a whole answer."""
        ...

    def stream(self, request: Request) -> EventStream: ...

    def refuse(self, refusal: Refusal) -> bytes:
        """The body of an error."""
        ...
