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
        self._buffer = b""
        self._continuation: list[bytes] = []
        """Reads after `_buffer` that belong to the same line."""
        self._continuation_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now. Raises `ValueError` for an event over the
        limit."""
        if (
            not self._buffer
            and data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and b"\r" not in data
        ):
            return [data[6:-2]]  # the common case: exactly one whole event
        if self._buffer:
            if b"\n" not in data and b"\r" not in data:
                return self._extend_line(data)
            data = b"".join((self._buffer, *self._continuation, data))
            self._continuation.clear()
            self._continuation_bytes = 0
        if b"\r" in data:
            return self._feed_with_carriage_returns(data)
        return self._split(data)

    def _extend_line(self, data: bytes) -> list[bytes]:
        """Buffer a part of a long line. The line is joined once, however many reads it takes."""
        self._continuation.append(data)
        self._continuation_bytes += len(data)
        self._check(len(self._buffer) + self._continuation_bytes)
        return []

    def _check(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of its stream is longer than {MAX_EVENT_BYTES} bytes")

    def _feed_with_carriage_returns(self, data: bytes) -> list[bytes]:
        # A carriage return at the end may be half of a CRLF: keep it for the next read.
        ends_in_return = data.endswith(b"\r")
        if ends_in_return:
            data = data[:-1]
        events = self._split(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        if ends_in_return:
            self._buffer += b"\r"
        return events

    def _split(self, data: bytes) -> list[bytes]:
        blocks = data.split(b"\n\n")
        self._buffer = blocks.pop()
        self._check(len(self._buffer))
        return [event_data for block in blocks if (event_data := _data(block))]


def _data(block: bytes) -> bytes:
    """The data of one event; empty for comments and events without data."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
