"""Retries: recognizes a request that repeats an earlier one.

A client library that got no answer in time, or lost its connection, sends the same bytes again.
Such a retry is not a second exchange: it waits for the answer to the first request, or gets the
cached one. The same bytes are a new request, for a second sample, in two cases:

* They come over the connection that already delivered the first answer.
* The client says that it never retried (`x-stainless-retry-count: 0`), unless the client of the
  first request disconnected without its answer.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple

from plimsoll.gateway.body_prefixes import Fingerprint
from plimsoll.gateway.completions import Answer, Request
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.sessions.pending_request import Client, PendingRequest

__all__ = ["RecentAnswer", "RequestIdentity", "RetryCache"]

CACHE_SECONDS = 30.0
MAX_ANSWERS = 4
MAX_ANSWER_BYTES = 256 * 1024
"""Larger answers are not cached."""


class RequestIdentity(NamedTuple):
    """Equal for requests of equal bytes."""

    path: str
    body: Fingerprint


@dataclass(frozen=True, slots=True)
class RecentAnswer:
    """A cached answer, without its raw form."""

    dialect: Dialect
    request: Request
    answer: Answer
    client: Client
    """The client that got the answer."""
    expires_at: float

    def write(self) -> bytes:
        """Write the answer again, whole or as a stream, as the request asks."""
        if self.request.stream:
            return self.dialect.stream(self.request).whole(self.answer)
        return self.dialect.write(self.request, self.answer)


class RetryCache:
    """Requests in flight and recent answers, by request."""

    def __init__(self) -> None:
        self._in_flight: dict[RequestIdentity, PendingRequest] = {}
        self._answers: dict[RequestIdentity, RecentAnswer] = {}

    def find(
        self, identity: RequestIdentity, client: Client
    ) -> PendingRequest | RecentAnswer | None:
        """The request or answer that this request repeats, if any."""
        in_flight = self._in_flight.get(identity)
        if in_flight is not None:
            return None if client.first_try and in_flight.has_listeners else in_flight
        recent = self._answers.get(identity)
        if recent is None or recent.expires_at < time.monotonic():
            return None
        if recent.client.shares_connection(client):
            return None
        was_delivered = recent.client.connected or recent.client.delivered
        return None if client.first_try and was_delivered else recent

    def begin(self, identity: RequestIdentity, pending: PendingRequest) -> None:
        self._in_flight[identity] = pending
        self._answers.pop(identity, None)

    def end(
        self, identity: RequestIdentity, pending: PendingRequest, answer: Answer | None
    ) -> None:
        """Remove a finished request from those in flight, and cache its answer, if it has one."""
        if self._in_flight.get(identity) is pending:
            del self._in_flight[identity]
        wants_tokens = pending.request.wants_logprobs or pending.request.wants_ids
        if answer is None or wants_tokens or _size(answer) > MAX_ANSWER_BYTES:
            return
        stripped = Answer(
            id=answer.id, message=answer.message, finish=answer.finish, usage=answer.usage
        )
        expires_at = time.monotonic() + CACHE_SECONDS
        self._answers[identity] = RecentAnswer(
            pending.dialect, pending.request, stripped, pending.client, expires_at
        )
        if len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def expire(self, now: float) -> None:
        for identity in [
            identity for identity, recent in self._answers.items() if recent.expires_at < now
        ]:
            del self._answers[identity]

    def clear(self) -> None:
        self._in_flight.clear()
        self._answers.clear()


def _size(answer: Answer) -> int:
    message = answer.message
    argument_chars = sum(len(call.arguments) for call in message.calls)
    return len(message.text) + len(message.reasoning) + argument_chars
