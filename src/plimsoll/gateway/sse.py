"""Server-sent events: writing single events, and splitting a byte stream into events."""

__all__ = ["DONE_EVENT", "PING_COMMENT", "EventSplitter", "sse_event"]

DONE_EVENT = b"data: [DONE]\n\n"
"""The last event of an OpenAI chat stream."""

PING_COMMENT = b": ping\n\n"
"""A comment, which every client skips."""


def sse_event(data: bytes, name: str | None = None) -> bytes:
    """One event. Data of several lines stays one event."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines())
    if name is None:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The limit on one event: an endless event must not fill the memory."""


class EventSplitter:
    """Splits bytes into the data of complete events, wherever the reads cut them."""

    def __init__(self) -> None:
        self._rest = b""
        self._more: list[bytes] = []
        """Reads after `_rest` that belong to the same line."""
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now. Raises `ValueError` for an event over the
        limit."""
        if (
            not self._rest
            and data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and b"\r" not in data
        ):
            return [data[6:-2]]  # the common case: exactly one whole event
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
        """Buffer a part of a long line. The line is joined once, however many reads it takes."""
        self._more.append(data)
        self._held += len(data)
        self._check(len(self._rest) + self._held)
        return []

    def _check(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of its stream is longer than {MAX_EVENT_BYTES} bytes")

    def _feed_with_returns(self, data: bytes) -> list[bytes]:
        # A carriage return at the end may be half of a CRLF: keep it for the next read.
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
    """The data of one event; empty for comments and events without data."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
