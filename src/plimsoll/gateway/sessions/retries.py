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
from plimsoll.gateway.completions import Answer, Refusal, Request
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.sessions.pending_request import Client, PendingRequest

__all__ = ["PolicyFailures", "RecentAnswer", "RequestIdentity", "RetryCache"]

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


# Consecutive failures of the policy, and the refusal after too many of them.
#
# Some agents retry forever. After `MAX_IN_A_ROW` failures they get a status that clients do not
# retry.


MAX_IN_A_ROW = 10
"""Each failure stands for all retries of the upstream itself."""
RETRY_SECONDS = 60.0
"""After this time, one more request is let through: a person may have fixed the policy."""


class PolicyFailures:
    """Counts the consecutive failures of one session. Requests that failed together count once."""

    def __init__(self) -> None:
        self.last = ""
        """The last failure; empty once the policy has answered."""
        self._in_a_row = 0
        self._last_time = 0.0

    def add(self, message: str, sent_at: float) -> None:
        """Count the failure of a request that was sent at the time `sent_at`."""
        self.last = message
        if sent_at >= self._last_time:
            self._in_a_row += 1
            self._last_time = time.monotonic()

    def clear(self) -> None:
        """Reset the count: the policy has answered."""
        self.last = ""
        self._in_a_row = 0

    def check(self) -> None:
        """Raise the refusal for another request, if the policy has failed too often."""
        if self._in_a_row >= MAX_IN_A_ROW and time.monotonic() - self._last_time < RETRY_SECONDS:
            message = (
                f"the policy has failed {self._in_a_row} times in a row; the last time: {self.last}"
            )
            raise Refusal("gave_up", message)
