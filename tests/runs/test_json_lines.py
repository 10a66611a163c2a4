"""Lines of a run's files: written off the loop, in order, and on disk when acknowledged."""

import asyncio
import resource
import time
from pathlib import Path

import msgspec
import pytest

from plimsoll.core.errors import UsageError
from plimsoll.runs.files import json_lines
from plimsoll.runs.files.json_lines import LineWriter


class Record(msgspec.Struct):
    number: int


def numbers(path: Path) -> list[int]:
    return [line.number for line in msgspec.json.Decoder(Record).decode_lines(path.read_bytes())]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> float:
    """A file system that takes this long for each write."""
    append = json_lines._append

    def sleeps(path: Path, lines: bytes) -> None:
        time.sleep(0.3)
        append(path, lines)

    monkeypatch.setattr(json_lines, "_append", sleeps)
    return 0.3


async def test_lines_of_many_callers_keep_their_order_and_share_writes(tmp_path: Path, slow: float):
    writer, file, other = LineWriter(), tmp_path / "lines", tmp_path / "other"
    began = time.monotonic()
    await asyncio.gather(
        *(writer.write(file, Record(number)) for number in range(500)),
        *(writer.write(other, Record(number)) for number in range(500)),
    )
    assert numbers(file) == numbers(other) == list(range(500))
    assert time.monotonic() - began < 500 * slow / 2, "queued lines are written together"


async def test_a_slow_file_system_does_not_block_the_event_loop(tmp_path: Path, slow: float):
    writer = LineWriter()
    writing = asyncio.create_task(writer.write(tmp_path / "lines", Record(1)))
    turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100


async def test_a_line_is_in_the_file_when_its_write_returns(tmp_path: Path):
    writer = LineWriter()
    for number in range(20):
        await writer.write(tmp_path / "lines", Record(number))
        assert numbers(tmp_path / "lines")[-1] == number


@pytest.mark.usefixtures("slow")
async def test_flush_writes_the_line_of_a_cancelled_caller(tmp_path: Path):
    writer = LineWriter()
    writing = [
        asyncio.create_task(writer.write(tmp_path / "lines", Record(number))) for number in range(3)
    ]
    await asyncio.sleep(0)
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)
    await writer.flush()
    assert numbers(tmp_path / "lines") == [0, 1, 2]


async def test_a_full_disk_leaves_only_complete_lines(tmp_path: Path):
    writer, file = LineWriter(), tmp_path / "lines"
    for number in range(10):
        await writer.write(file, Record(number))
    size = file.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, hard))
    try:
        with pytest.raises(UsageError, match=r"cannot write .*lines: File too large; choose"):
            await writer.write(file, Record(10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.stat().st_size == size
    with pytest.raises(UsageError, match="File too large"):
        await writer.write(file, Record(11))
    assert numbers(file) == list(range(10))
