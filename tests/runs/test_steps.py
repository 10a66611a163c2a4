"""`steps.jsonl`: one line per step, in order, after any crash."""

import json
import resource
from pathlib import Path

import msgspec
import pytest

from plimsoll.core.errors import UsageError
from plimsoll.runs.files.steps import Seconds, Step, StepsFile, drop_undone, last_steps


def line(step: int, reward: float | None = 0.5) -> Step:
    return Step(
        step=step,
        version=str(step),
        at=1e9,
        reward=reward,
        age=1,
        groups=2,
        graded=7,
        withheld=0,
        seconds=Seconds(total=2.0, wait=1.0),
    )


def rewards(file: Path) -> list[tuple[int, float]]:
    """The step and reward of each line of the file."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(line["step"], line["reward"]) for line in lines]


def test_the_last_steps_are_read_from_the_end_of_the_file(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    assert last_steps(path, 3, up_to=9) == []
    data = [msgspec.json.encode(line(step)) + b"\n" for step in range(1, 1001)]
    path.write_bytes(b"".join(data[:2]))
    assert [one.step for one in last_steps(path, 3, up_to=9)] == [1, 2]
    path.write_bytes(b"x" * 100_000 + b"\n" + b"".join(data) + data[0][:50])
    assert [one.step for one in last_steps(path, 3, up_to=2000)] == [998, 999, 1000]
    assert [one.step for one in last_steps(path, 3, up_to=999)] == [997, 998, 999]


def test_the_complete_line_of_a_step_replaces_its_preliminary_line(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    file = StepsFile(path)
    for step in (1, 2):
        file.write(line(step, 0.123456789), is_complete=False)
        assert rewards(path)[-1] == (step, 0.123456789)
        file.write(line(step), is_complete=True)
    assert rewards(path) == [(1, 0.5), (2, 0.5)]


def test_a_resumed_run_drops_lines_that_a_crash_undid_or_truncated(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    pairs = ((1, 0.1), (2, 0.2), (1, 0.3))
    written = [msgspec.json.encode(line(step, reward)) for step, reward in pairs]
    # A line of another version of Plimsoll is kept as it is.
    older, undone = b'{"step":3,"reward":0.4}', msgspec.json.encode(line(4))
    path.write_bytes(b"\n".join([*written, older, undone, b'{"step":3,"rew']))
    drop_undone(path, up_to=3)
    StepsFile(path).write(line(4, 0.6), is_complete=True)
    assert rewards(path) == [(1, 0.3), (2, 0.2), (3, 0.4), (4, 0.6)]


def test_a_line_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path):
    (tmp_path / "steps.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*steps.jsonl.*--out"):
        StepsFile(tmp_path / "steps.jsonl").write(line(1), is_complete=True)


def test_a_full_disk_keeps_the_preliminary_line_of_a_step(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    file = StepsFile(path)
    file.write(line(1), is_complete=True)
    file.write(line(2), is_complete=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with pytest.raises(UsageError, match="cannot write"):
            file.write(line(2, 0.123456789), is_complete=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert rewards(path) == [(1, 0.5), (2, 0.5)]


def test_a_rate_counts_the_phases_and_not_the_time_between_steps():
    assert Seconds(total=100.0, wait=1.0, update=0.5, publish=0.5).rate(40) == 20.0
    assert Seconds(total=100.0, wait=0.0).rate(40) is None
