"""A trajectory's file: zstd frames one after the other, each with its own checksum.

A frame holds whole lines: the records of one exchange. `zstdcat` reads the file. While it is
written its name ends in `.part`; what a killed process leaves there is whole frames, and at
most the beginning of one more.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

__all__ = ["NAME", "PART", "Frame", "compress", "find_trajectory", "frames"]

NAME = "trajectory.jsonl.zst"
PART = f"{NAME}.part"
_LEVEL = 1
_FIRST_READ = 2048


class _Compressors(threading.local):
    """One compressor a thread: it is large, and no two threads may use one at once."""

    def __init__(self) -> None:
        self.own = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)


_compressors = _Compressors()


def compress(lines: bytes) -> bytes:
    return _compressors.own.compress(lines)


def find_trajectory(folder: Path) -> Path | None:
    """The trajectory in a folder: the closed one, else one that is still open."""
    for name in (NAME, PART):
        if (folder / name).is_file():
            return folder / name
    return None


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame's lines and where it ends, or why there is no frame where one should begin."""

    start: int
    end: int
    lines: bytes
    problem: str = ""


def frames(data: bytes) -> Iterator[Frame]:
    """Each frame in turn. The last one has a problem if the data ends or breaks in it."""
    decompressor = zstandard.ZstdDecompressor()
    view = memoryview(data)
    start = 0
    while start < len(data):
        frame = _frame(decompressor, view, start)
        yield frame
        if frame.problem:
            return
        start = frame.end


def _frame(decompressor: zstandard.ZstdDecompressor, view: memoryview, start: int) -> Frame:
    # What is given beyond a frame's end is copied, so little is given at first.
    reading = decompressor.decompressobj()
    lines: list[bytes] = []
    at, size = start, _FIRST_READ
    try:
        while not reading.eof:
            piece = view[at : at + size]
            if not piece:
                return Frame(start, at, b"", f"it ends inside the record at byte {start:,}")
            lines.append(reading.decompress(piece))
            at += len(piece)
            size *= 2
    except zstandard.ZstdError as error:
        return Frame(start, at, b"", f"it is damaged in the record at byte {start:,} ({error})")
    return Frame(start, at - len(reading.unused_data), b"".join(lines))
