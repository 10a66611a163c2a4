"""The protocol of a dialect: parses requests; writes answers, streams and errors."""

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
"""The HTTP status of each refusal, in every dialect.

An exhausted budget and a policy that failed too often are a 400: clients retry 429 and 5xx, and
waiting would not help.
"""


class EventStream(Protocol):
    """Writes one streamed answer as server-sent events."""

    def start(self) -> bytes:
        """The events before the first piece; may be empty."""
        ...

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """The events for pieces that arrived together. Never the last event of the stream."""
        ...

    def end(self, answer: Answer) -> bytes:
        """The rest of the stream, once the whole answer is recorded."""
        ...

    def whole(self, answer: Answer) -> bytes:
        """The whole stream, if only pings were sent: for a retry, or an upstream that does not
        stream."""
        ...

    def ping(self) -> bytes:
        """Bytes that clients ignore, to keep a silent connection open."""
        ...

    def fail(self, refusal: Refusal) -> bytes:
        """An error in the middle of the stream."""
        ...


class Dialect(Protocol):
    """A stateless wire format."""

    @property
    def name(self) -> str: ...

    def read(self, body: bytes, prefix: BodyPrefix | None = None, /) -> Request:
        """Parse a request. Raises `Refusal` if it is invalid. `prefix` is the already parsed prefix
        of the body, if any."""
        ...

    def write(self, request: Request, answer: Answer) -> bytes:
        """The body of a whole answer."""
        ...

    def stream(self, request: Request) -> EventStream: ...

    def refuse(self, refusal: Refusal) -> bytes:
        """The body of an error."""
        ...
