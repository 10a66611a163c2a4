import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.gateway import sse
from plimsoll.gateway.sse import EventSplitter

EVENTS = [b'{"a": 1}', b"[DONE]", "{ü😀}".encode(), b"two\nlines"]


def written(event: bytes, end: bytes) -> bytes:
    lines = [b"data: " + line + end for line in event.split(b"\n")]
    return b": a comment" + end + b"event: x" + end + b"".join(lines) + end


@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=6),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    data=st.data(),
)
def test_events_are_whole_wherever_reads_cut_them(events, end, data):
    stream = b"".join(written(event, end) for event in events)
    splitter, found, at = EventSplitter(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 9))
        found += splitter.feed(stream[at : at + size])
        at += size
    # A lone carriage return at the end of the stream may be half of a CRLF.
    found += splitter.feed(b"\n")
    assert found == events


def test_data_without_a_space_is_read():
    assert EventSplitter().feed(b"data:x\n\ndata: y\n\n") == [b"x", b"y"]


def test_comments_are_not_events():
    splitter = EventSplitter()
    assert splitter.feed(b": ping\n\n: ping\n\n") == []


def test_an_endless_event_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = EventSplitter()
    with pytest.raises(ValueError, match="longer than"):
        for _ in range(100):
            splitter.feed(b"data: " + b"x" * 100)


def test_the_cost_of_a_long_event_does_not_depend_on_the_number_of_reads():
    splitter, began = EventSplitter(), time.process_time()
    pieces = [b"data: ", *[b"x" * 4096] * 4096, b"\n", b"\n"]
    (event,) = [found for piece in pieces for found in splitter.feed(piece)]
    assert event == b"x" * (4096 * 4096)
    assert time.process_time() - began < 1
