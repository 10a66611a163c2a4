"""Reads a trajectory's file: a closed one as a whole, an open one as far as it goes."""

import hashlib
from pathlib import Path

import msgspec

from plimsoll.core.errors import TrajectoryError, TrajectoryGone
from plimsoll.core.unreadable import UNREADABLE
from plimsoll.trajectories.frames import find_trajectory, frames
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
from plimsoll.trajectories.spans import length_of
from plimsoll.trajectories.tokens import WIDTH
from plimsoll.trajectories.trajectory import Trajectory

__all__ = ["Trajectory", "has_answers", "read_trajectory"]

_decoder = msgspec.json.Decoder(Record)
_UNFINISHED = "it is not closed: the session is not over, or was killed"


def read_trajectory(path: Path) -> Trajectory:
    """A closed trajectory, verified; of a `.part`, what can be read, and what is wrong with it.

    Raises `TrajectoryGone` for a closed one that is not what was written, and for a file that
    is not there or holds no trajectory at all.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise TrajectoryGone(f"{path}: there is no such file") from error
    except OSError as error:
        raise TrajectoryError(f"{path}: cannot be read ({error.strerror or error})") from error
    reading = _Reading()
    problem = reading.read(data)
    if reading.trajectory is None:
        raise TrajectoryGone(f"{path}: holds no trajectory; {problem or 'it is empty'}")
    if reading.trajectory.closed is None:
        problem = problem or _UNFINISHED
    if problem and path.suffix != ".part":
        raise TrajectoryGone(
            f"{path}: the trajectory cannot be trusted; {problem}. It was changed after it was "
            "written, or only a part of it was copied"
        )
    reading.trajectory.problem = problem
    return reading.trajectory


def has_answers(folder: Path) -> bool:
    """Whether the trajectory in a folder, closed or not, has an answer of the policy."""
    path = find_trajectory(folder)
    try:
        data = b"" if path is None else path.read_bytes()
    except OSError:
        return False
    return any(_has_answer(frame.lines) for frame in frames(data) if not frame.problem)


def _has_answer(lines: bytes) -> bool:
    try:
        return any(isinstance(record, Exchange) for record in _decoder.decode_lines(lines))
    except UNREADABLE:
        return False


class _Inconsistent(Exception):
    """A record that does not fit to those before it."""


class _Reading:
    """Puts the records of a file together, one by one."""

    def __init__(self) -> None:
        self.trajectory: Trajectory | None = None
        self._digest = hashlib.sha256()
        self._records = 0

    def read(self, data: bytes) -> str:
        """Reads up to the first thing that is wrong, and says what that is."""
        for frame in frames(data):
            if frame.problem:
                return frame.problem
            try:
                self._take(frame.lines)
            except (*UNREADABLE, _Inconsistent) as error:
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
            _expect(self.trajectory is None, "it opens the trajectory again")
            _expect(record.format == FORMAT, f"its format is {record.format}, not {FORMAT}")
            self.trajectory = Trajectory(record)
            return
        trajectory = self.trajectory
        if trajectory is None or trajectory.closed is not None:
            raise _Inconsistent("it stands before the trajectory is opened, or after it is closed")
        match record:
            case ToolsAdded(tools=tools):
                _expect(record.id == len(trajectory.nodes), f"there is no node before {record.id}")
                # Read from a line, the tools would keep all lines around them in memory.
                trajectory.nodes.append(ToolsAdded(record.id, tools.copy()))
            case MessageAdded():
                _expect(record.id == len(trajectory.nodes), f"there is no node before {record.id}")
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
        _expect(closed.digest == self._digest.hexdigest(), "the digest of the records is another")


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
    _expect(widths == {0}, "its token ids are cut off")
    _expect(0 <= tokens.kept <= before, f"it keeps {tokens.kept} of {before} tokens")
    _expect(stamped == ids, f"{stamped} tokens carry a version, but the answer has {ids} ids")
    _expect(len(tokens.logprobs) in (0, len(tokens.answer)), "a log probability is missing")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Inconsistent(otherwise)
