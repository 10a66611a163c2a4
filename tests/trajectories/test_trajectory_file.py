import asyncio
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from recording_parts import TOOLS, Spoken, Talk, assistant, done, user

from parts import need
from plimsoll.core.errors import TrajectoryError
from plimsoll.trajectories import trajectory_file as writer_module
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.trajectory_file import (
    FILE_NAME,
    PART_NAME,
    compress,
    find_trajectory,
    frames,
    read_trajectory,
)

U, A = user("hello"), assistant("hi")


def turns(talk: Talk, count: int) -> None:
    history = [U]
    for turn in range(count):
        answer = assistant(f"answer {turn}")
        talk.ask(*history, answer=answer, tools=TOOLS)
        history = [*history, answer, user(f"next {turn}")]


async def test_an_exchange_is_in_the_file_when_commit_returns(talk: Talk):
    for count in range(1, 4):
        talk.ask(user(f"{count}"), answer=A)
        assert len(read_trajectory(talk.folder / PART_NAME).exchanges) == count


async def test_a_recorded_session_is_read_back(talk: Talk):
    turns(talk, 3)
    talk.recorder.trouble("upstream", "it hung", "chat")
    trajectory = await talk.close()
    assert trajectory.complete
    assert trajectory.problem == ""
    assert trajectory.opened.session == "s1"
    assert trajectory.opened.about == {"run": "r"}
    assert trajectory.closed is not None
    assert trajectory.closed.ending == "submitted"
    assert trajectory.exchanges == talk.exchanges
    assert [one.what for one in trajectory.troubles] == ["upstream"]
    tools = trajectory.tools_of(trajectory.exchanges[2])
    assert tools is not None
    assert bytes(tools) == bytes(TOOLS)
    assert [one.text for one in trajectory.messages_of(trajectory.exchanges[1])] == [
        "hello",
        "answer 0",
        "next 0",
    ]


async def test_a_closed_file_has_its_name_and_no_part(talk: Talk):
    turns(talk, 1)
    assert find_trajectory(talk.folder) == talk.folder / PART_NAME
    path = await talk.recorder.close("submitted")
    assert path == talk.folder / FILE_NAME
    assert [one.name for one in talk.folder.iterdir()] == [FILE_NAME]
    assert find_trajectory(talk.folder) == path


async def test_closing_twice_gives_the_same_file(talk: Talk):
    turns(talk, 1)
    first, second = await asyncio.gather(
        talk.recorder.close("submitted"), talk.recorder.close("budget", "turns")
    )
    assert first == second == await talk.recorder.close("budget")
    closed = read_trajectory(first).closed
    assert closed is not None
    assert closed.ending == "submitted"


async def test_a_cancelled_close_still_completes_the_file(talk: Talk):
    turns(talk, 1)
    closing = asyncio.create_task(talk.recorder.close("submitted"))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert read_trajectory(await talk.recorder.close("submitted")).complete


async def test_nothing_is_added_after_the_end(talk: Talk):
    position = talk.recorder.locate(Spoken([U]), None)
    await talk.recorder.close("submitted")
    with pytest.raises(TrajectoryError, match="closed"):
        talk.recorder.commit(position, done([U], A))
    with pytest.raises(TrajectoryError, match="closed"):
        talk.recorder.trouble("upstream", "late")


async def test_nothing_is_added_while_the_file_is_flushed_to_disk(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
):
    turns(talk, 1)
    tried = threading.Event()
    monkeypatch.setattr(writer_module.os, "fsync", lambda _: tried.wait(10))
    closing = asyncio.create_task(talk.recorder.close("submitted"))
    await asyncio.sleep(0)
    try:
        with pytest.raises(TrajectoryError, match="closed"):
            talk.recorder.trouble("cancelled", "late")
    finally:
        tried.set()
    assert read_trajectory(await closing).complete


async def test_an_abandoned_file_stays_a_part(talk: Talk):
    turns(talk, 2)
    talk.recorder.abandon()
    with pytest.raises(TrajectoryError, match="closed"):
        await talk.recorder.close("submitted")
    trajectory = read_trajectory(talk.folder / PART_NAME)
    assert not trajectory.complete
    assert len(trajectory.exchanges) == 2
    assert "not closed" in trajectory.problem


async def test_a_folder_holds_one_trajectory(talk: Talk, tmp_path: Path):
    with pytest.raises(TrajectoryError, match="a writable folder of its own"):
        Recorder.open(talk.folder, tmp_path, "s2", {})
    await talk.recorder.close("submitted")
    with pytest.raises(TrajectoryError, match="exists already"):
        Recorder.open(talk.folder, tmp_path, "s2", {})


def test_zstdcat_shows_the_records_line_by_line(talk: Talk):
    need("zstd", None if shutil.which("zstdcat") else "zstdcat is not installed")
    turns(talk, 2)
    path = asyncio.run(talk.recorder.close("submitted"))
    shown = subprocess.run(["zstdcat", path], check=True, capture_output=True).stdout
    kinds = [msgspec.json.decode(line)["kind"] for line in shown.splitlines()]
    assert kinds[0] == "opened"
    assert kinds[-1] == "closed"
    assert kinds.count("exchange") == 2


async def test_a_file_cut_at_any_byte_reads_as_a_beginning(talk: Talk, tmp_path: Path):
    turns(talk, 3)
    whole = (await talk.recorder.close("submitted")).read_bytes()
    ends = [frame.end for frame in frames(whole)]
    cut = tmp_path / "cut.part"
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        if length < ends[0]:
            with pytest.raises(TrajectoryError, match="not a trajectory"):
                read_trajectory(cut)
            continue
        trajectory = read_trajectory(cut)
        assert len(trajectory.exchanges) == min(sum(end <= length for end in ends) - 1, 3)
        assert trajectory.exchanges == talk.exchanges[: len(trajectory.exchanges)]
        assert trajectory.complete == (length == len(whole))
        assert ("ends inside" in trajectory.problem) == (length not in ends)


async def test_a_closed_file_with_any_flipped_bit_is_refused(talk: Talk, tmp_path: Path):
    turns(talk, 2)
    whole = (await talk.recorder.close("submitted")).read_bytes()
    lines = b"".join(frame.lines for frame in frames(whole))
    path = tmp_path / FILE_NAME
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            read_trajectory(path)
        except TrajectoryError:
            refused += 1
        else:
            # A few bits of zstd's own tables do not change the content.
            assert b"".join(frame.lines for frame in frames(path.read_bytes())) == lines
    assert refused > 0.98 * len(whole)


async def test_a_record_changed_together_with_its_checksum_is_refused(talk: Talk, tmp_path: Path):
    turns(talk, 2)
    whole = (await talk.recorder.close("submitted")).read_bytes()
    changed = [frame.lines.replace(b"answer 1", b"answer 7") for frame in frames(whole)]
    path = tmp_path / FILE_NAME
    path.write_bytes(b"".join(compress(lines) for lines in changed))
    with pytest.raises(TrajectoryError, match="digest"):
        read_trajectory(path)


async def test_a_closed_file_that_lacks_a_record_is_refused(talk: Talk, tmp_path: Path):
    turns(talk, 3)
    talk.recorder.trouble("upstream", "it hung")
    whole = (await talk.recorder.close("submitted")).read_bytes()
    parts = [whole[frame.start : frame.end] for frame in frames(whole)]
    path = tmp_path / FILE_NAME
    for left_out in range(len(parts)):
        path.write_bytes(b"".join(part for at, part in enumerate(parts) if at != left_out))
        with pytest.raises(TrajectoryError):
            read_trajectory(path)
    path.write_bytes(whole + parts[1])
    with pytest.raises(TrajectoryError, match="follows the closing one"):
        read_trajectory(path)


async def test_damage_in_the_middle_is_reported_with_its_offset(talk: Talk):
    turns(talk, 3)
    talk.recorder.abandon()
    path = talk.folder / PART_NAME
    whole = path.read_bytes()
    ends = [frame.end for frame in frames(whole)]
    path.write_bytes(whole[: ends[2]] + b"garbage" + whole[ends[2] :])
    trajectory = read_trajectory(path)
    assert len(trajectory.exchanges) == 2
    assert f"damaged in the record at byte {ends[2]:,}" in trajectory.problem


@pytest.mark.parametrize("lines", [b"{}\n", b"nonsense\n", b'{"kind":"other"}\n', b"\xff\n"])
async def test_an_invalid_record_is_reported_with_its_offset(talk: Talk, lines: bytes):
    turns(talk, 1)
    talk.recorder.abandon()
    path = talk.folder / PART_NAME
    length = path.stat().st_size
    with path.open("ab") as file:
        file.write(compress(lines))
    trajectory = read_trajectory(path)
    assert len(trajectory.exchanges) == 1
    assert f"the record at byte {length:,} is not valid" in trajectory.problem


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, compress(b'{"kind":1}\n')])
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes):
    for name in (FILE_NAME, PART_NAME):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TrajectoryError, match="not a trajectory"):
            read_trajectory(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(TrajectoryError, match="nothing"):
        read_trajectory(tmp_path / "nothing")


async def test_partial_writes_are_continued(talk: Talk, monkeypatch: pytest.MonkeyPatch):
    real = os.write
    monkeypatch.setattr(writer_module.os, "write", lambda fd, data: real(fd, data[:7]))
    turns(talk, 2)
    assert (await talk.close()).complete


async def test_a_full_disk_is_reported_and_leaves_whole_records(talk: Talk):
    turns(talk, 2)
    part = talk.folder / PART_NAME
    before = part.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The write takes a part, then fails: as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 20, hard))
    try:
        with pytest.raises(TrajectoryError, match="cannot be written"):
            talk.ask(user("one more"), answer=A)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert part.stat().st_size == before
    # A missing exchange cannot be repaired, even when there is space again.
    with pytest.raises(TrajectoryError, match="cannot be written"):
        talk.ask(user("and one"), answer=A)
    with pytest.raises(TrajectoryError, match="cannot be written"):
        await talk.recorder.close("submitted")
    assert not (talk.folder / FILE_NAME).exists()
    trajectory = read_trajectory(part)
    assert len(trajectory.exchanges) == 2
    assert "ends inside" not in trajectory.problem


def test_a_full_disk_at_the_start_leaves_no_open_file(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(TrajectoryError, match="cannot be written"):
            Recorder.open(tmp_path / "t", tmp_path / "blobs", "s", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    open_files = [Path(file.path) for file in os.scandir("/proc/self/fd")]
    assert str(tmp_path / "t" / PART_NAME) not in {os.path.realpath(file) for file in open_files}


async def test_a_disk_that_fails_at_the_end_leaves_a_part(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    turns(talk, 1)
    monkeypatch.setattr(writer_module.os, "fsync", fail)
    for _ in range(2):
        with pytest.raises(TrajectoryError, match="input/output error"):
            await talk.recorder.close("submitted")
    assert not (talk.folder / FILE_NAME).exists()
    assert len(read_trajectory(talk.folder / PART_NAME).exchanges) == 1


_ENDLESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from recording_parts import Spoken, assistant, done, user
from plimsoll.trajectories.recorder import Recorder
folder = Path(sys.argv[1])
recorder = Recorder.open(folder, folder / "blobs", "s", {})
history = [user("hello " * 2000)]
turn = 0
while True:
    answer = assistant(f"answer {turn} " * 50)
    recorder.commit(recorder.locate(Spoken(history), None), done(history, answer))
    print(turn, flush=True)
    history = [*history, answer, user("next " * 500)][-40:]
    turn += 1
"""


def test_records_of_a_killed_process_are_read_back(tmp_path: Path):
    arguments = [sys.executable, "-c", _ENDLESS, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = 0
        while seen < 30:
            seen = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        seen = int(rest[-1]) if rest else seen
    trajectory = read_trajectory(tmp_path / PART_NAME)
    assert len(trajectory.exchanges) >= seen + 1
    assert not trajectory.complete


def test_a_long_file_is_read_in_linear_time(tmp_path: Path):
    folder = tmp_path / "long"
    recorder = Recorder.open(folder, tmp_path / "blobs", "s", {})
    for number in range(2_000):
        history = [U, user(f"{number}")]
        recorder.commit(recorder.locate(Spoken(history), None), done(history, A))
    recorder.abandon()
    start = time.process_time()
    assert len(read_trajectory(folder / PART_NAME).exchanges) == 2_000
    first = time.process_time() - start
    data = (folder / PART_NAME).read_bytes()
    troubles = compress(b'{"kind":"trouble","at":1,"what":"upstream","detail":"x"}\n')
    (folder / PART_NAME).write_bytes(data + troubles * 100_000)
    start = time.process_time()
    assert len(read_trajectory(folder / PART_NAME).troubles) == 100_000
    assert time.process_time() - start < 60 * max(first, 0.05)
