"""The output of `plimsoll status`: a run is resumed only if that is possible."""

import json
import shlex
import time
from pathlib import Path

import msgspec
import pytest

from plimsoll.cli.views.status import show
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.status import Status

STATUS = Status(
    run="my run",
    state="ended",
    why="it was stopped",
    at=time.time(),
    seconds=1.0,
    step=3,
    steps=None,
    version="3",
    rewards=[1.0],
    age=0,
    max_staleness=0,
    trials=6,
    graded=6,
    void={},
    trials_per_second=1.0,
    running=0,
    waiting=0,
    buffered=0,
    requeued=0,
    out={},
    heldout={},
    canaries="0 of 0 good",
    workers=[],
)


@pytest.mark.parametrize(
    ("changes", "files", "resumes"),
    [
        ({"steps": 4}, {}, True),
        ({"steps": 3}, {}, False),
        ({}, {}, True),
        ({}, {"summary.json": {"done": False}}, True),
        ({}, {"summary.json": {"done": True}}, False),
        ({"total": 9}, {"request.json": {"command": "eval", "request": {}}}, True),
        ({"total": 6}, {"request.json": {"command": "eval", "request": {}}}, False),
        ({"total": 9}, {"request.json": {"command": "trl", "request": {}}}, False),
    ],
)
def test_only_a_run_that_can_go_on_shows_the_command_that_resumes_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, int],
    files: dict[str, object],
    resumes: bool,
):
    directory = RunDirectory(tmp_path / "my run")
    directory.path.mkdir()
    status = msgspec.structs.replace(STATUS, **changes)
    directory.status.write_bytes(msgspec.json.encode(status))
    for name, content in files.items():
        (directory.path / name).write_text(json.dumps(content))
    assert show(directory, as_json=False) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    path = shlex.quote(str(directory.path))
    assert last.startswith(f"see: plimsoll ledger {path}")
    assert last.endswith(f" · continue: plimsoll resume {path}") is resumes
