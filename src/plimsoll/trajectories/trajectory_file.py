"""Trajectory files: a sequence of zstd frames, each with its own checksum.

A frame holds whole lines: the records of one exchange. `zstdcat` reads the file. While it is
written, its name ends in `.part`; a killed process leaves whole frames there, and at most the
beginning of one more. A closed file is complete and verified by its digest; an open one is read as
far as possible.
"""

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zstandard

from plimsoll.core.errors import TrajectoryError, TrajectoryGone
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.trajectories.records import (
    FORMAT,
    Closed,
    Exchange,
    MessageAdded,
    Opened,
    Record,
    Tokens,
    ToolsAdded,
    Trouble,
)
from plimsoll.trajectories.token_sequence import WIDTH, length_of
from plimsoll.trajectories.trajectory import Trajectory

__all__ = [
    "FILE_NAME",
    "PART_NAME",
    "Frame",
    "TrajectoryWriter",
    "compress",
    "find_trajectory",
    "frames",
    "has_answers",
    "read_trajectory",
]

FILE_NAME = "trajectory.jsonl.zst"
PART_NAME = f"{FILE_NAME}.part"
_LEVEL = 1
_FIRST_READ = 2048


class _Compressors(threading.local):
    """One compressor per thread: it is large, and not thread-safe."""

    def __init__(self) -> None:
        self.own = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)


_compressors = _Compressors()


def compress(lines: bytes) -> bytes:
    return _compressors.own.compress(lines)


def find_trajectory(folder: Path) -> Path | None:
    """The trajectory in a folder: the closed one, else the one that is still open."""
    for name in (FILE_NAME, PART_NAME):
        if (folder / name).is_file():
            return folder / name
    return None


@dataclass(frozen=True, slots=True)
class Frame:
    """The lines of a frame and its end, or the problem that prevented reading it."""

    start: int
    end: int
    lines: bytes
    problem: str = ""


def frames(data: bytes) -> Iterator[Frame]:
    """The frames in order. The last one has a problem if the data is truncated or damaged there."""
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
    # Input beyond a frame's end is copied, so the first reads are small.
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


_encoder = msgspec.json.Encoder()


class TrajectoryWriter:
    """An open trajectory file. After any failure it holds whole frames up to its length."""

    def __init__(self, folder: Path, opened: Opened) -> None:
        self.path = folder / FILE_NAME
        self._part = folder / PART_NAME
        self._digest = hashlib.sha256()
        self._records = 0
        self._length = 0
        self._failure = ""
        self._descriptor = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                raise FileExistsError(f"{FILE_NAME} exists already")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._part, flags, 0o644)
        except OSError as error:
            raise TrajectoryError(
                f"{folder}: cannot create a trajectory here ({error}); each session needs "
                "a writable folder of its own"
            ) from error
        try:
            self.write([opened])
        except TrajectoryError:
            self.drop()
            raise

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def write(self, records: Sequence[Record]) -> None:
        """Append all of the records, or none of them."""
        if self._failure:
            raise TrajectoryError(self._failure)
        if not self.is_open:
            raise TrajectoryError(f"{self.path}: the trajectory is closed")
        lines = _encoder.encode_lines(records)
        self._append(compress(lines))
        self._digest.update(lines)
        self._records += len(records)

    def finish(self, ending: str, exchanges: int, detail: str) -> None:
        """Append the last record. `seal` completes the file."""
        self.write([Closed(ending, exchanges, self._records, self._digest.hexdigest(), detail)])

    def seal(self, blobs: Iterable[Path]) -> Path:
        """Flush everything to disk, then rename the file. This is slow."""
        try:
            for blob in blobs:
                _sync(blob)
            os.fsync(self._descriptor)
            self._part.rename(self.path)
            _sync(self.path.parent)
        except OSError as error:
            self.fail(error)
            raise TrajectoryError(self._failure) from error
        finally:
            self.drop()
        return self.path

    def drop(self) -> None:
        """Close the file as it is."""
        if self.is_open:
            os.close(self._descriptor)
            self._descriptor = -1

    def fail(self, error: OSError) -> str:
        """Refuse all further writes: a missing exchange cannot be repaired."""
        self._failure = (
            f"{self._part}: the trajectory cannot be written ({error.strerror or error}); "
            "the records before this are readable, the rest of the session is lost"
        )
        return self._failure

    def _append(self, frame: bytes) -> None:
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._length)
            raise TrajectoryError(self.fail(error)) from error
        self._length += len(frame)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_decoder = msgspec.json.Decoder(Record)
_UNFINISHED = "it is not closed: the session is still running, or was killed"


def read_trajectory(path: Path) -> Trajectory:
    """Read a closed trajectory and verify it, or read a `.part` as far as possible and note its
    problem.

    Raises `TrajectoryGone` for a closed file that was modified, and for a file that is missing or
    holds no trajectory.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise TrajectoryGone(f"{path}: no such file") from error
    except OSError as error:
        raise TrajectoryError(f"{path}: cannot be read ({error.strerror or error})") from error
    reading = _Reading()
    problem = reading.read(data)
    if reading.trajectory is None:
        raise TrajectoryGone(f"{path}: not a trajectory; {problem or 'the file is empty'}")
    if reading.trajectory.closed is None:
        problem = problem or _UNFINISHED
    if problem and path.suffix != ".part":
        raise TrajectoryGone(
            f"{path}: the trajectory is damaged; {problem}. It was modified after it was "
            "written, or copied incompletely"
        )
    reading.trajectory.problem = problem
    return reading.trajectory


def has_answers(folder: Path) -> bool:
    """Whether the trajectory in a folder, closed or not, contains an answer of the policy."""
    path = find_trajectory(folder)
    try:
        data = b"" if path is None else path.read_bytes()
    except OSError:
        return False
    return any(_has_answer(frame.lines) for frame in frames(data) if not frame.problem)


def _has_answer(lines: bytes) -> bool:
    try:
        return any(isinstance(record, Exchange) for record in _decoder.decode_lines(lines))
    except DECODE_ERRORS:
        return False


class _Inconsistent(Exception):
    """A record that contradicts earlier ones."""


class _Reading:
    """Builds a trajectory from the records of a file."""

    def __init__(self) -> None:
        self.trajectory: Trajectory | None = None
        self._digest = hashlib.sha256()
        self._records = 0

    def read(self, data: bytes) -> str:
        """Read up to the first problem, and return it."""
        for frame in frames(data):
            if frame.problem:
                return frame.problem
            try:
                self._take(frame.lines)
            except (*DECODE_ERRORS, _Inconsistent) as error:
                return f"the record at byte {frame.start:,} is not valid: {error}"
        return ""

    def _take(self, lines: bytes) -> None:
        for record in _decoder.decode_lines(lines):
            if isinstance(record, Closed):
                self._check_closed(record)
            self._add(record)
            self._records += 1
        self._digest.update(lines)

    def _add(self, record: Record) -> None:
        if isinstance(record, Opened):
            _expect(self.trajectory is None, "it is a second opening record")
            _expect(record.format == FORMAT, f"its format is {record.format}, not {FORMAT}")
            self.trajectory = Trajectory(record)
            return
        trajectory = self.trajectory
        if trajectory is None or trajectory.closed is not None:
            raise _Inconsistent("it precedes the opening record, or follows the closing one")
        match record:
            case ToolsAdded(tools=tools):
                _expect(record.id == len(trajectory.nodes), f"node {record.id} is out of order")
                # A copy: a slice of a line would keep the whole frame in memory.
                trajectory.nodes.append(ToolsAdded(record.id, tools.copy()))
            case MessageAdded():
                _expect(record.id == len(trajectory.nodes), f"node {record.id} is out of order")
                _expect(-1 <= record.parent < record.id, f"it follows node {record.parent}")
                trajectory.nodes.append(record)
            case Exchange():
                _check_exchange(trajectory, record)
                trajectory.exchanges.append(record)
            case Trouble():
                trajectory.troubles.append(record)
            case Closed():
                trajectory.closed = record

    def _check_closed(self, closed: Closed) -> None:
        exchanges = len(self.trajectory.exchanges) if self.trajectory is not None else 0
        _expect(closed.records == self._records, f"{self._records} records, not {closed.records}")
        _expect(closed.exchanges == exchanges, f"{exchanges} exchanges, not {closed.exchanges}")
        _expect(
            closed.digest == self._digest.hexdigest(), "the digest of the records does not match"
        )


def _check_exchange(trajectory: Trajectory, exchange: Exchange) -> None:
    _expect(exchange.id == len(trajectory.exchanges), f"no exchange before {exchange.id}")
    _expect(-1 <= exchange.parent < exchange.id, f"it follows exchange {exchange.parent}")
    _expect(-1 <= exchange.prompt < len(trajectory.nodes), f"its prompt is {exchange.prompt}")
    _expect(0 <= exchange.answer < len(trajectory.nodes), f"its answer is {exchange.answer}")
    if exchange.tokens is not None:
        before = length_of(trajectory.exchanges[exchange.parent]) if exchange.parent >= 0 else 0
        _check_tokens(exchange.tokens, before)


def _check_tokens(tokens: Tokens, before: int) -> None:
    ids = len(tokens.answer) // WIDTH
    stamped = sum(count for _, count in tokens.versions)
    widths = {len(data) % WIDTH for data in (tokens.prompt, tokens.answer, tokens.logprobs)}
    _expect(widths == {0}, "its token ids are truncated")
    _expect(0 <= tokens.kept <= before, f"it keeps {tokens.kept} of {before} tokens")
    _expect(stamped == ids, f"{stamped} tokens carry a version, but the answer has {ids} ids")
    _expect(len(tokens.logprobs) in (0, len(tokens.answer)), "a log probability is missing")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Inconsistent(otherwise)
