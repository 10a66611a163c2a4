"""Server-sent events as bytes."""

__all__ = ["DONE", "PING", "event"]

DONE = b"data: [DONE]\n\n"
"""What ends a stream of OpenAI's chat dialect."""

PING = b": ping\n\n"
"""A comment, which every reader of events skips."""


def event(data: bytes, name: str | None = None) -> bytes:
    """One event. Data of several lines stays one event."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines())
    if name is None:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
