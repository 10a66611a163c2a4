"""Progress on a terminal: a live table on stderr, and the cursor restored afterwards."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from training_files import GRADE, write_training

from terminals import read_all


def on_a_terminal(folder: Path, *args: str) -> tuple[bytes, str]:
    """Run a command with stderr on a terminal; return its stdout and the text on the terminal."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "plimsoll", *args],
        cwd=folder,
        env=os.environ | {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = read_all(ours)
        os.close(ours)
        assert process.stdout is not None
        out = process.stdout.read()
    assert process.returncode == 0, seen
    return out, seen


def test_the_live_table_shows_phases_and_restores_the_cursor(
    write_task: Callable[..., Path], tmp_path: Path
):
    write_task("slow", solve="sleep 1")
    out, seen = on_a_terminal(tmp_path, "eval", "tasks", "--json")
    assert out.startswith(b'{"tasks":1,')
    assert "0/1 trials" in seen
    assert "slow.1" in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")


@pytest.mark.slow
def test_a_training_shows_its_last_steps_and_a_progress_bar(
    write_task: Callable[..., Path], tmp_path: Path
):
    write_task("a", test=GRADE)
    write_training(tmp_path, steps=3)
    _, seen = on_a_terminal(tmp_path, "run", "night.toml", "--json")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert re.search(r"step +reward +held-out +flat +entropy +kl +gradient", shown)
    assert re.search(r"━{10}\S*\s+step \d/3   reward", shown)
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
