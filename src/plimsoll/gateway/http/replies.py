"""HTTP replies: whole answers, errors, and streams of events."""

from contextlib import suppress

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from plimsoll.gateway.completions import Answer, Chunk, Refusal
from plimsoll.gateway.dialects.protocol import STATUSES, Dialect, EventStream
from plimsoll.gateway.sessions.pending_request import Listener, PendingRequest

__all__ = ["StreamReply", "events_reply", "json_reply", "refusal_reply", "send_reply"]

JSON_HEADERS = {"Content-Type": "application/json"}
EVENT_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that clients retry."""
RETRY_AFTER = "1"
"""In seconds. The upstream has already retried for as long as that helps, so agents need not
wait."""


def json_reply(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers=JSON_HEADERS)


def events_reply(body: bytes) -> web.Response:
    """A whole stream as one body."""
    return web.Response(body=body, headers=EVENT_HEADERS)


def refusal_reply(dialect: Dialect, refusal: Refusal) -> web.Response:
    reply = json_reply(dialect.refuse(refusal), STATUSES[refusal.kind])
    if reply.status in RETRIED_STATUSES:
        reply.headers["Retry-After"] = RETRY_AFTER
    if refusal.kind == "too_large":
        reply.force_close()  # the rest of the body is not read
    return reply


async def send_reply(http: web.BaseRequest, reply: web.StreamResponse) -> bool:
    """Send the unsent rest of a reply. Returns whether the client was still connected."""
    try:
        await reply.prepare(http)
        await reply.write_eof()
    except ConnectionError:
        return False
    return True


class StreamReply(Listener):
    """A listener that streams the answer to its client.

    The status is sent with the first piece, so that an earlier refusal still has its own status.
    """

    __slots__ = ("_events", "_http", "_response", "_streaming", "_writer")

    def __init__(self, http: web.BaseRequest, events: EventStream) -> None:
        super().__init__()
        self._http = http
        self._events = events
        self._response: web.StreamResponse | None = None
        self._writer: AbstractStreamWriter | None = None
        self._streaming = False

    async def receive(self, chunks: list[Chunk]) -> None:
        data = self._events.chunks(chunks)
        if not self._streaming:
            self._streaming = True
            data = self._events.start() + data
        if data:
            await self._send(data)

    async def ping(self) -> None:
        transport = self._http.transport
        # A client with unread data needs no ping, and waiting for it would delay the pings of
        # others.
        if transport is not None and transport.get_write_buffer_size() == 0:
            await self._send(self._events.ping())

    async def finish(
        self, pending: PendingRequest, outcome: Answer | Refusal
    ) -> web.StreamResponse:
        """The rest of the stream, or all of it if nothing was sent yet."""
        if isinstance(outcome, Refusal):
            if self._response is None:
                return refusal_reply(pending.dialect, outcome)
            last = self._events.fail(outcome)
        else:
            last = self._events.end(outcome) if self._streaming else self._events.whole(outcome)
            if self._response is None:
                return events_reply(last)
        with suppress(ConnectionError):  # the answer is recorded even if the client is gone
            await self._response.write_eof(last)
        return self._response

    async def _send(self, data: bytes) -> None:
        try:
            if self._response is None:
                self._response = web.StreamResponse(headers=EVENT_HEADERS)
                self._writer = await self._response.prepare(self._http)
            if self._writer is not None:
                await self._writer.write(data)
        except ConnectionError:
            pass  # the handler is cancelled when its connection is lost
