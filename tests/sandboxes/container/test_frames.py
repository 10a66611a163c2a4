"""Frames are decoded from any split of the stream, and invalid data is an error."""

import itertools
import random
import struct

import pytest

from plimsoll.sandboxes.container.frames import (
    MAX_DATA,
    Decoder,
    Frame,
    FrameError,
    Kind,
    RequestEnd,
    header,
    pack_fields,
    read_fields,
    read_request_end,
)

FRAMES = [
    Frame(Kind.READY, 0, pack_fields([b"plimsoll-init", b"1"])),
    Frame(Kind.OUT, 1, b"out"),
    Frame(Kind.ERR, 1, b"err" * 100),
    Frame(Kind.CREDIT, 7, b"\x01\0\0\0"),
    Frame(Kind.OUT, 1 << 31, b""),
    Frame(Kind.END, 1, pack_fields([b"exit", b"0"])),
    Frame(Kind.CLOSE, (1 << 32) - 1, b""),
]
STREAM = b"".join(header(Kind(f.kind), f.number, len(f.payload)) + f.payload for f in FRAMES)


def _joined(frames: list[Frame]) -> list[Frame]:
    """Frames with the parts of streamed frames joined."""
    found: list[Frame] = []
    for frame in frames:
        last = found[-1] if found else None
        if last and frame.payload and last.payload and last[:2] == frame[:2]:
            found[-1] = Frame(frame.kind, frame.number, last.payload + frame.payload)
        else:
            found.append(frame)
    return found


def test_frames_in_one_chunk_are_decoded():
    assert list(Decoder().feed(STREAM)) == FRAMES


@pytest.mark.parametrize("size", range(1, 40))
def test_frames_split_anywhere_are_decoded(size: int):
    decoder = Decoder()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert _joined([frame for piece in pieces for frame in decoder.feed(piece)]) == FRAMES


def test_frames_split_at_random_are_decoded():
    chance = random.Random(7)
    for _ in range(200):
        cuts = sorted({0, len(STREAM), *(chance.randrange(len(STREAM)) for _ in range(9))})
        decoder = Decoder()
        pieces = [STREAM[a:b] for a, b in itertools.pairwise(cuts)]
        assert _joined([frame for piece in pieces for frame in decoder.feed(piece)]) == FRAMES


def test_output_is_yielded_before_its_frame_is_complete():
    decoder = Decoder()
    assert list(decoder.feed(header(Kind.OUT, 1, 6) + b"abc")) == [Frame(Kind.OUT, 1, b"abc")]
    assert list(decoder.feed(b"def")) == [Frame(Kind.OUT, 1, b"def")]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff" * 9,
        b"HTTP/1.1 ",
        struct.pack("<IBI", 0, 0, 1),
        struct.pack("<IBI", 0, Kind.EXEC, 1),
        struct.pack("<IBI", 0, 200, 1),
        struct.pack("<IBI", MAX_DATA + 1, Kind.OUT, 1),
        struct.pack("<IBI", (1 << 32) - 1, Kind.END, 1),
    ],
)
def test_an_invalid_frame_is_an_immediate_error(nonsense: bytes):
    with pytest.raises(FrameError):
        list(Decoder().feed(nonsense))


@pytest.mark.parametrize(
    "payload", [b"\1", b"\5\0\0\0abc", b"\xff\xff\xff\xffabc", b"\1\0\0\0a\2\0\0"]
)
def test_truncated_fields_are_an_error(payload: bytes):
    with pytest.raises(FrameError):
        read_fields(payload)


def test_fields_may_contain_any_bytes():
    fields = [b"", b"\0\xff", b"x" * 70_000]
    assert read_fields(pack_fields(fields)) == fields


def test_an_end_is_parsed_by_its_keys():
    pairs = [
        b"files",
        b"3",
        b"bytes",
        b"9",
        b"skipped",
        b"a: \xff",
        b"skipped",
        b"b\n",
        b"new",
        b"x",
    ]
    assert read_request_end(pack_fields(pairs)) == RequestEnd(
        files=3, bytes=9, skipped=("a: \\xff", "b\\n")
    )
    assert read_request_end(pack_fields([b"oom_kills", b"", b"processes", b"0"])) == RequestEnd(
        processes=0
    )
    assert read_request_end(b"") == RequestEnd()


@pytest.mark.parametrize("value", [b"x", b"-1", b"1_0", b" 1", b"9" * 30])
def test_an_invalid_number_is_an_error(value: bytes):
    with pytest.raises(FrameError):
        read_request_end(pack_fields([b"exit", value]))
