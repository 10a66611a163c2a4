"""The command itself: quick to start, quiet where it should be."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Plimsoll = Callable[..., CompletedProcess[str]]

LOADED = """
import sys
from plimsoll.cli.main import main
try:
    main({args!r})
except SystemExit as ended:
    assert not ended.code, ended.code
heavy = {{"asyncio", "msgspec", "pydantic", "rich"}} & set(sys.modules)
print("loaded:", sorted(heavy))
"""


def test_help_loads_nothing_heavy():
    for args in (["--help"], ["eval", "--help"], ["--version"]):
        ended = subprocess.run(
            [sys.executable, "-c", LOADED.format(args=args)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.endswith("loaded: []\n")


def test_help_names_the_commands_and_the_exit_statuses(plimsoll: Plimsoll):
    listed = [line.split(maxsplit=1) for line in plimsoll("--help").stdout.splitlines()]
    assert ["eval", "Run an agent over the task or the folder of tasks at PATH."] in listed
    said = " ".join(plimsoll("eval", "--help").stdout.split())
    assert "3 at least one trial is void" in said
    assert "one for each core, at least 2" in said


def test_without_a_command_it_shows_its_help_as_bad_usage(plimsoll: Plimsoll):
    ended = plimsoll()
    assert ended.returncode == 2
    assert ended.stderr.startswith("Usage: plimsoll")


def test_an_unknown_command_says_where_help_is(plimsoll: Plimsoll):
    ended = plimsoll("evil")
    assert ended.returncode == 2
    assert ended.stderr == "plimsoll: No such command 'evil'.\ntry: plimsoll --help\n"


def test_a_reader_that_went_away_is_no_trace(tmp_path: Path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "plimsoll", "eval", "--help"],
            stdout=writing,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")
