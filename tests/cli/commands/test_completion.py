"""Shell completion: in a real bash, and as zsh and fish ask for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.cli import options

SHELLS = ("bash", "zsh", "fish")

COMPLETE = r"""
eval "$(plimsoll completion bash)"
complete -p plimsoll >&2
COMP_WORDS=(plimsoll "$@") COMP_CWORD=$# COMPREPLY=()
_plimsoll_completion plimsoll "${!#}" ""
printf '%s\n' "${COMPREPLY[@]}"
"""
"""Prints the completions of the last word, as bash does when the tab key is pressed."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a `plimsoll` of this Python at the front of the path."""
    program = tmp_path / "bin/plimsoll"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m plimsoll "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def complete(*words: str, folder: Path) -> list[str]:
    bash = shutil.which("bash")
    assert bash is not None
    ended = subprocess.run(
        [bash, "--norc", "-c", COMPLETE, "bash", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "_plimsoll_completion plimsoll" in ended.stderr
    return ended.stdout.split()


def test_bash_completes_commands_and_their_options(programs: None, tmp_path: Path):
    assert complete("s", folder=tmp_path) == ["show", "simulate", "stage", "status", "stop"]
    assert complete("gateway", "pr", folder=tmp_path) == ["probe"]
    assert complete("stop", "--", folder=tmp_path) == ["--now", "--json", "--help"]
    assert complete("eval", "tasks", "--att", folder=tmp_path) == ["--attempts"]
    assert complete("completion", "", folder=tmp_path) == list(SHELLS)


def test_bash_completes_names_of_runs_backends_and_agents(programs: None, tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    for command in ("status", "stop", "resume", "ledger", "clean"):
        assert complete(command, "fi", folder=tmp_path) == ["first"]
    assert complete("eval", "--backend", "d", folder=tmp_path) == ["docker"]
    assert complete("ps", "--backend", "a", folder=tmp_path) == ["all"]
    assert complete("eval", "--agent", "co", folder=tmp_path) == ["codex"]


def test_the_completed_names_are_all_that_there_are():
    from plimsoll.agents.registry import AGENTS
    from plimsoll.workers.worker.backends import BACKENDS

    assert options.AGENTS == AGENTS
    assert tuple(BACKENDS) == options.BACKENDS


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_that_calls_this_command(
    programs: None, tmp_path: Path, shell: str
):
    ended = subprocess.run(
        ["plimsoll", "completion", shell], capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    assert f"_PLIMSOLL_COMPLETE={shell}_complete" in ended.stdout
    if interpreter := shutil.which(shell):
        subprocess.run([interpreter, "-n"], input=ended.stdout, text=True, check=True)


def answers(shell: str, folder: Path, line: str, word: str) -> list[str]:
    """The completions of the last word of a line, asked for as the shell's script does.

    Of zsh each is three lines: its type, itself and its description. Of fish it is one line.
    """
    asked = {
        "_PLIMSOLL_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1) if shell == "zsh" else word,
    }
    ended = subprocess.run(
        ["plimsoll"], cwd=folder, env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    return ended.stdout.splitlines()


def test_zsh_gets_commands_and_options_with_their_descriptions(programs: None, tmp_path: Path):
    assert answers("zsh", tmp_path, "plimsoll sto", "sto") == [
        "plain",
        "stop",
        "Stop a run and wait for its end.",
    ]
    option = answers("zsh", tmp_path, "plimsoll eval --att", "--att")
    assert option[:2] == ["plain", "--attempts"]
    assert option[2] not in ("", "_")


def test_fish_gets_commands_and_options_with_their_descriptions(programs: None, tmp_path: Path):
    assert answers("fish", tmp_path, "plimsoll sto", "sto") == [
        "plain,stop\tStop a run and wait for its end."
    ]
    (option,) = answers("fish", tmp_path, "plimsoll eval --att", "--att")
    assert option.startswith("plain,--attempts\t")


def test_an_unknown_shell_is_bad_usage(programs: None):
    ended = subprocess.run(
        ["plimsoll", "completion", "tcsh"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "'bash', 'zsh', 'fish'" in ended.stderr


def test_completion_imports_no_heavy_library():
    script = """
import sys
from plimsoll.cli.main import main
try:
    main([])
except SystemExit as ended:
    assert not ended.code, ended.code
print("loaded:", sorted({"asyncio", "msgspec", "pydantic", "rich"} & set(sys.modules)))
"""
    words = {
        "_PLIMSOLL_COMPLETE": "bash_complete",
        "COMP_WORDS": "plimsoll eval --",
        "COMP_CWORD": "2",
    }
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | words,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "plain,--attempts" in ended.stdout
    assert ended.stdout.endswith("loaded: []\n")
