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
    until: float

    def write(self) -> bytes:
        """Write the answer again, whole or as a stream, as the request asks."""
        if self.request.stream:
            return self.dialect.stream(self.request).whole(self.answer)
        return self.dialect.write(self.request, self.answer)


class RetryCache:
    """Requests in flight and recent answers, by request."""

    def __init__(self) -> None:
        self._flying: dict[RequestIdentity, PendingRequest] = {}
        self._kept: dict[RequestIdentity, RecentAnswer] = {}

    def find(self, same: RequestIdentity, client: Client) -> PendingRequest | RecentAnswer | None:
        """The request or answer that this request repeats, if any."""
        flying = self._flying.get(same)
        if flying is not None:
            return None if client.first_try and flying.waited_for else flying
        kept = self._kept.get(same)
        if kept is None or kept.until < time.monotonic():
            return None
        if kept.client.shares_connection(client):
            return None
        answered = kept.client.connected or kept.client.delivered
        return None if client.first_try and answered else kept

    def begin(self, same: RequestIdentity, pending: PendingRequest) -> None:
        self._flying[same] = pending
        self._kept.pop(same, None)

    def end(self, same: RequestIdentity, pending: PendingRequest, answer: Answer | None) -> None:
        """Remove a finished request from those in flight, and cache its answer, if it has one."""
        if self._flying.get(same) is pending:
            del self._flying[same]
        wants_tokens = pending.request.wants_logprobs or pending.request.wants_ids
        if answer is None or wants_tokens or _size(answer) > MAX_ANSWER_BYTES:
            return
        slim = Answer(
            id=answer.id, message=answer.message, finish=answer.finish, usage=answer.usage
        )
        until = time.monotonic() + CACHE_SECONDS
        self._kept[same] = RecentAnswer(
            pending.dialect, pending.request, slim, pending.client, until
        )
        if len(self._kept) > MAX_ANSWERS:
            del self._kept[next(iter(self._kept))]

    def expire(self, now: float) -> None:
        for same in [same for same, kept in self._kept.items() if kept.until < now]:
            del self._kept[same]

    def clear(self) -> None:
        self._flying.clear()
        self._kept.clear()


def _size(answer: Answer) -> int:
    message = answer.message
    called = sum(len(call.arguments) for call in message.calls)
    return len(message.text) + len(message.reasoning) + called
