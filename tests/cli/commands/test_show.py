"""`plimsoll show`: verdict and messages of finished, running and killed trials."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import pytest

from plimsoll.core.endings import Ending
from plimsoll.trajectories.trajectory_file import FILE_NAME, PART_NAME
from plimsoll.trials.record import AgentEnd, VerdictFile
from plimsoll.trials.verdicts import Cause, Evidence, Graded, Verdict, Void
from recorded_sessions import Talk, ask, calling, result, say, system
from terminals import read_all

Plimsoll = Callable[..., CompletedProcess[str]]

GRADED = Graded(1.0, Ending.SUBMITTED, {"reward": 1.0, "style": 0.25})
VOID = Void(
    Cause.GRADER,
    "the grader could not import `log_parsers` (tests/test.sh line 14), then wrote 0",
    (
        Evidence("ModuleNotFoundError: No module named 'log_parsers'", "verifier/stderr.txt:31"),
        Evidence('no test was run; reward.txt held "0" and was not used'),
    ),
)
START = [system("Work."), ask("Fix it.")]
CALLED = calling("bash", '{"command": "ls"}')
LONG = "\n".join(f"line {number}" for number in range(200))


def write_verdict(folder: Path, verdict: Verdict, *, agent: str = "shell") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    end = AgentEnd(ending=Ending.BUDGET, detail="out of turns (2)", exit_code=0, turns=2)
    file = VerdictFile(
        task="fix-add",
        attempt=3,
        agent=agent,
        backend="local",
        verdict=verdict,
        steps={"main": verdict},
        ends={"main": end},
        tests={},
        seconds=12.34,
        phases={},
        started=0.0,
    )
    (folder / "verdict.json").write_bytes(msgspec.json.encode(file))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs/demo/trials/fix-add.3"


@pytest.fixture
def talk(folder: Path) -> Talk:
    """A trial's session of two turns and a branch."""
    talk = Talk(folder, {"task": "fix-add", "agent": "shell", "model": "small"})
    talk.turn(START, CALLED, finish="tool_calls")
    talk.turn([*START, CALLED, result(LONG)], say("Done."))
    talk.turn([*START, ask("So far.")], say("Other."))
    return talk


@pytest.fixture
async def trial(talk: Talk, folder: Path) -> Path:
    """A finished trial."""
    await talk.close()
    write_verdict(folder, GRADED)
    return folder


def test_a_graded_trial_shows_its_reward_and_its_conversation(trial: Path, plimsoll: Plimsoll):
    ended = plimsoll("show", str(trial))
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[:4] == [
        "graded: 1.00 · submitted",
        "  rewards    reward 1.00, style 0.25",
        "  agent      budget · out of turns (2) · exit 0 · 2 turns",
        "  trial      fix-add · attempt 3 · shell · local · 12.3 s",
    ]
    assert lines[4].startswith("3 turns · ")
    assert lines[4].endswith(" · version 0 · 2 branches · small · ended: submitted")
    assert "bash command: ls" in ended.stdout
    assert "characters left out, --full shows them" in ended.stdout
    assert "── branch 1 · the agent rewrote history" in ended.stdout
    assert lines[-1].startswith(f"see: plimsoll show {trial}")


def test_a_void_trial_shows_reason_evidence_and_remedy(folder: Path, plimsoll: Plimsoll):
    write_verdict(folder, VOID, agent="oracle")
    ended = plimsoll("show", str(folder))
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[:4] == [
        f"void: grader · {VOID.reason}",
        "  evidence   verifier/stderr.txt:31  ModuleNotFoundError: No module named 'log_parsers'",
        '             no test was run; reward.txt held "0" and was not used',
        "  remedy     read verifier/stdout.txt and verifier/stderr.txt; "
        "fix tests/ or their dependencies",
    ]
    assert "no trajectory: the agent made no request to the policy" in ended.stdout


def test_full_shows_long_texts_uncut(trial: Path, plimsoll: Plimsoll):
    shown = plimsoll("show", str(trial), "--full").stdout
    assert all(f"line {number}\n" in shown for number in range(200))
    assert "left out" not in shown


def test_a_selected_branch_is_shown_alone_and_uncut(trial: Path, plimsoll: Plimsoll):
    shown = plimsoll("show", str(trial), "--branch", "1").stdout
    assert "Fix it." in shown and "Other." in shown and "Done." not in shown
    ended = plimsoll("show", str(trial), "--branch", "2")
    assert ended.returncode == 2
    assert ended.stderr == "plimsoll: the trajectory has no branch 2: its branches are 0 to 1\n"
    assert not ended.stdout


def test_tokens_are_shown_turn_by_turn(trial: Path, plimsoll: Plimsoll):
    shown = plimsoll("show", str(trial), "--tokens").stdout
    rows = [line.split() for line in shown.splitlines()]
    head = rows.index(["turn", "branch", "prompt", "kept", "answer", "logprob", "version", "ids"])
    assert [row[:2] for row in rows[head + 1 : head + 4]] == [["1", "0"], ["2", "0"], ["3", "1"]]
    assert rows[head + 1][5:7] == ["-0.500", "0"]
    assert int(rows[head + 2][3]) == int(rows[head + 1][2]) + int(rows[head + 1][4])
    assert "Fix it." not in shown


def test_json_is_one_object_with_the_verdict_and_the_branches(trial: Path, plimsoll: Plimsoll):
    shown = json.loads(plimsoll("show", str(trial), "--json").stdout)
    assert shown["verdict"]["verdict"]["reward"] == 1.0
    trajectory = shown["trajectory"]
    assert (trajectory["complete"], trajectory["ending"]) == (True, "submitted")
    assert [len(branch["turns"]) for branch in trajectory["branches"]] == [2, 1]
    assert trajectory["branches"][1]["shared"] == 2
    assert trajectory["branches"][0]["messages"][-1]["parts"][0]["text"] == "Done."


def test_the_trajectory_of_a_trial_is_exported(trial: Path, plimsoll: Plimsoll, tmp_path: Path):
    atif = json.loads(plimsoll("show", str(trial), "--export", "atif").stdout)
    assert (atif["schema_version"], atif["extra"]["reward"]) == ("ATIF-v1.8", 1.0)
    out = tmp_path / "samples.jsonl"
    ended = plimsoll("show", str(trial), "--export", "jsonl", "--out", str(out))
    assert (ended.returncode, ended.stdout) == (0, "")
    assert str(out) in ended.stderr
    assert [json.loads(line)["reward"] for line in out.read_text().splitlines()] == [1.0, 1.0]


@pytest.mark.parametrize("form", ["atif", "jsonl"])
def test_a_failed_export_keeps_an_existing_file(
    trial: Path, plimsoll: Plimsoll, tmp_path: Path, form: str
):
    out = tmp_path / "kept"
    out.write_text("before")
    ended = plimsoll("show", str(trial), "--export", form, "--branch", "9", "--out", str(out))
    assert ended.returncode == 2
    assert out.read_text() == "before"


def test_a_void_trial_exports_no_reward(trial: Path, plimsoll: Plimsoll):
    write_verdict(trial, VOID)
    shown = plimsoll("show", str(trial), "--export", "jsonl").stdout
    assert [json.loads(line)["reward"] for line in shown.splitlines()] == [None, None]
    atif = json.loads(plimsoll("show", str(trial), "--export", "atif").stdout)
    assert "reward" not in atif["extra"]


def test_a_killed_trial_is_shown_up_to_its_last_record(
    talk: Talk, folder: Path, plimsoll: Plimsoll
):
    talk.recorder.abandon()
    part = folder / PART_NAME
    part.write_bytes(part.read_bytes()[:-20])
    ended = plimsoll("show", str(folder))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "no verdict: the trial is running or was killed"
    assert any(line.startswith("unfinished: ") for line in lines)
    assert "Done." in ended.stdout and "Other." not in ended.stdout


def test_a_trajectory_file_is_shown_with_its_verdict(trial: Path, plimsoll: Plimsoll):
    shown = plimsoll("show", str(trial / FILE_NAME)).stdout
    assert shown.startswith("graded: 1.00") and "Done." in shown


def test_a_session_without_a_run_is_shown(tmp_path: Path, plimsoll: Plimsoll):
    Talk(tmp_path / "s").recorder.abandon()
    shown = plimsoll("show", "s").stdout
    assert shown.splitlines()[0] == "session s1"
    assert "0 turns" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (["empty"], "empty holds neither verdict.json nor trajectory.jsonl.zst"),
        (["runs/demo"], "runs/demo is a run; show one of its trials, in runs/demo/trials: fix-add"),
        (["garbage"], "garbage: not a trajectory"),
        (["broken"], "broken/verdict.json cannot be read"),
        (["empty", "--out", "x"], "--out needs --export atif"),
        (["empty", "--json", "--export", "atif"], "--export excludes --json and --tokens"),
        (["oracle", "--export", "atif"], "oracle has no trajectory"),
        (["runs/demo/trials/fix-add.3", "--export", "atif", "--out", "no/x"], "cannot write no/x"),
    ],
)
def test_an_invalid_path_or_file_gets_one_clear_message(
    trial: Path, tmp_path: Path, plimsoll: Plimsoll, args: list[str], words: str
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/verdict.json").write_text("{")
    (tmp_path / "garbage").write_text("no zstd")
    write_verdict(tmp_path / "oracle", VOID)
    ended = plimsoll("show", *args)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"plimsoll: {words}")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_the_terminal_and_escapes_of_the_agent_are_removed(folder: Path, columns: int):
    talk = Talk(folder, {"task": "fix-add\x1b[2J"})
    talk.turn([ask("Say \x1b]0;title\x07 " + "and more " * 40)], say("\x9b2J" * 50))
    talk.recorder.abandon()
    write_verdict(folder, Void(Cause.GRADER, "it said \x1b[2J", (Evidence("\x1b[2J"),)))
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "plimsoll", "show", str(folder)],
        env=os.environ | {"TERM": "xterm", "COLUMNS": str(columns)},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
    ) as process:
        os.close(theirs)
        seen = read_all(ours)
        os.close(ours)
    assert process.returncode == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", seen).replace("\r\n", "\n")
    assert all(char.isprintable() or char == "\n" for char in plain)
    assert 60 < max(len(line) for line in plain.split("\n")) <= columns
