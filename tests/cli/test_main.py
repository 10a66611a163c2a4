"""The `plimsoll` command itself: start time, help, errors."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import click
import pytest

from plimsoll.cli.main import COMMANDS

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


def test_help_imports_no_heavy_library():
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
    assert ["eval", "Run an agent over a task or a folder of tasks."] in listed
    said = " ".join(plimsoll("eval", "--help").stdout.split())
    assert "3 at least one trial is void" in said
    assert "one for each core, at least 2" in said


def test_every_command_explains_its_exit_status():
    commands = [importlib.import_module(module).command for module in COMMANDS.values()]
    groups = [command for command in commands if isinstance(command, click.Group)]
    commands += [below for group in groups for below in group.commands.values()]
    silent = [command.name for command in commands if "Exit status:" not in (command.epilog or "")]
    assert silent == []


def test_resume_explains_the_exit_statuses_of_all_that_it_resumes():
    epilog = " ".join((importlib.import_module(COMMANDS["resume"]).command.epilog or "").split())
    assert "1 a validation quarantined a task" in epilog
    assert "or a trial of an evaluation is void" in epilog


def test_without_a_command_it_shows_its_help_as_bad_usage(plimsoll: Plimsoll):
    ended = plimsoll()
    assert ended.returncode == 2
    assert ended.stderr.startswith("Usage: plimsoll")


def test_an_unknown_command_points_to_the_help(plimsoll: Plimsoll):
    ended = plimsoll("evil")
    assert ended.returncode == 2
    assert ended.stderr == "plimsoll: No such command 'evil'.\ntry: plimsoll --help\n"


def test_a_closed_reader_causes_no_stack_trace(tmp_path: Path):
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


@pytest.mark.parametrize("words", [["config"], ["config", "--json"], ["simulate", "--steps", "2"]])
def test_a_full_disk_under_stdout_is_one_line_without_a_stack_trace(
    tmp_path: Path, words: list[str]
):
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "plimsoll", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            check=False,
        )
    message = b"plimsoll: cannot write to standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, message)


def test_an_ascii_terminal_causes_no_stack_trace_and_data_stay_utf_8(tmp_path: Path):
    def run(*words: str) -> bytes:
        ended = subprocess.run(
            [sys.executable, "-m", "plimsoll", *words],
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
            capture_output=True,
            cwd=tmp_path,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        return ended.stdout

    assert run("simulate", "--steps", "2").startswith(b"plimsoll 0.1 ? simulated ? ")
    assert "τ: batches" in run("config").decode()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "run.toml", "--out", ""),
        ("run", ""),
        ("eval", "tasks", "--out", ""),
        ("eval", ""),
        ("validate", "tasks", "--out", " "),
        ("stage", "tasks", "--to", ""),
        ("bake", "codex", "--to", ""),
        ("gateway", "--upstream", "scripted:x", "--out", ""),
        ("show", "trial", "--export", "atif", "--out", ""),
        ("lint", "tasks", "--assets", ""),
        ("simulate", "--plot", ""),
    ],
)
def test_an_empty_path_is_refused_and_nothing_is_written(
    plimsoll: Plimsoll, tmp_path: Path, words: tuple[str, ...]
):
    ended = plimsoll(*words)
    assert ended.returncode == 2
    assert ": the path is empty\n" in ended.stderr
    assert not list(tmp_path.iterdir())
