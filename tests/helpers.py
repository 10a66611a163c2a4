"""Task folders, agents and checks of verdicts for single tests."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from parts import need
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.sandboxes.protocol import Mount, Sandbox
from plimsoll.tasks.loader import load_task
from plimsoll.tasks.task import Task
from plimsoll.trials.record import VerdictFile
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void

__all__ = [
    "HOST",
    "MARK",
    "FinishedTrial",
    "PlainAgent",
    "Shell",
    "check_graded",
    "check_void",
    "long_time",
    "marked",
    "need_several_users",
    "processes_with",
    "write_task_folder",
]

HOST = "FROM host-system\nWORKDIR /app\n"
"""The Dockerfile of most tests' tasks. They share it, so its image is built once."""
MARK = "PLIMSOLL_TEST_MARK"
"""A variable in the environment of the processes of a test, whose value tells tests apart."""


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """A finished trial: its verdict, folder and phases."""

    verdict: Verdict
    folder: Path
    phases: dict[str, float]

    @property
    def file(self) -> VerdictFile:
        return msgspec.json.decode((self.folder / "verdict.json").read_bytes(), type=VerdictFile)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()


class PlainAgent:
    """The base class of agents for tests: no policy, no mounts and no set-up."""

    version = ""
    reference = False
    needs_policy = False
    inside = True
    mounts: tuple[Mount, ...] = ()

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        pass


class Shell(PlainAgent):
    """An agent that runs one shell script and ignores its exit status."""

    name = "shell"

    def __init__(self, script: str) -> None:
        self._script = script

    async def run(self, assignment: Assignment) -> Outcome:
        await assignment.sandbox.exec(
            self._script, user=assignment.user, on_output=assignment.on_output
        )
        return Outcome()


def write_task_folder(folder: Path, files: Mapping[str, str], toml: str = "") -> Task:
    """Write a task's files, and load it."""
    for path, text in {"task.toml": f'schema_version = "1.4"\n{toml}', **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return load_task(folder)


def check_graded(ran: FinishedTrial, reward: float, *notes: str) -> None:
    """Check that the trial has this reward, and each of the notes in its evidence."""
    assert isinstance(ran.verdict, Graded), ran.verdict
    assert ran.verdict.reward == reward
    seen = [evidence.what for evidence in ran.verdict.evidence]
    for note in notes:
        assert any(note in what for what in seen), seen


def check_void(ran: FinishedTrial, cause: Cause, *words: str) -> None:
    """Check that the trial is void with this cause and words, and that its file has no reward."""
    assert isinstance(ran.verdict, Void), ran.verdict
    assert ran.verdict.cause is cause, ran.verdict
    for word in words:
        assert word in ran.verdict.reason
    assert msgspec.json.decode(ran.read("verdict.json"))["verdict"].get("reward") is None


def need_several_users() -> None:
    """Skip without root, where a local sandbox has only one user."""
    need("root", None if os.geteuid() == 0 else "only root can start commands as other users")


def long_time() -> str:
    """A random argument for `sleep`, by which a test finds its own process on this host."""
    return f"{1_000_000 + secrets.randbelow(1_000_000_000)}"


def processes_with(word: str) -> list[int]:
    """The ids of this host's processes with a word in their command line."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def marked(value: str) -> dict[int, str]:
    """The command lines of this host's processes with this value of `MARK`, by process id."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={value}".encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes()
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return found
