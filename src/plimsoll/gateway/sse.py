"""Server-sent events as bytes.

Cuts a stream of server-sent events into the data of its events, wherever reads cut it.
"""

__all__ = ["DONE_EVENT", "PING_COMMENT", "EventSplitter", "sse_event"]

DONE_EVENT = b"data: [DONE]\n\n"
"""What ends a stream of OpenAI's chat dialect."""

PING_COMMENT = b": ping\n\n"
"""A comment, which every reader of events skips."""


def sse_event(data: bytes, name: str | None = None) -> bytes:
    """One event. Data of several lines stays one event."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines())
    if name is None:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Bytes of one event. A server that never ends one must not fill the memory."""


class EventSplitter:
    """Given bytes as they arrive, returns the data of the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._more: list[bytes] = []
        """What came after the rest, all of it in the same line."""
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Raises ValueError for an event without an end."""
        if (
            not self._rest
            and data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and b"\r" not in data
        ):
            return [data[6:-2]]  # one event, all of it: how a stream mostly comes
        if self._rest:
            if b"\n" not in data and b"\r" not in data:
                return self._hold(data)
            data = b"".join((self._rest, *self._more, data))
            self._more.clear()
            self._held = 0
        if b"\r" in data:
            return self._feed_with_returns(data)
        return self._split(data)

    def _hold(self, data: bytes) -> list[bytes]:
        """A long line is put together once, however many reads it comes in."""
        self._more.append(data)
        self._held += len(data)
        self._check(len(self._rest) + self._held)
        return []

    def _check(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of its stream is longer than {MAX_EVENT_BYTES} bytes")

    def _feed_with_returns(self, data: bytes) -> list[bytes]:
        # A return at the very end may be half of a line's end: it waits for the next read.
        held = data.endswith(b"\r")
        if held:
            data = data[:-1]
        events = self._split(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        if held:
            self._rest += b"\r"
        return events

    def _split(self, data: bytes) -> list[bytes]:
        blocks = data.split(b"\n\n")
        self._rest = blocks.pop()
        self._check(len(self._rest))
        return [found for block in blocks if (found := _data(block))]


def _data(block: bytes) -> bytes:
    """The data of one event; empty for comments and events without any."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
