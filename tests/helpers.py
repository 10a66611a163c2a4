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
    "Plain",
    "Ran",
    "Shell",
    "check_graded",
    "check_void",
    "long_time",
    "need_several_users",
    "processes_with",
    "write_task_folder",
]

HOST = "FROM host-system\nWORKDIR /app\n"
"""The Dockerfile of most tests' tasks: equal, so built once."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A trial that has ended: its verdict and its folder."""

    verdict: Verdict
    folder: Path
    phases: dict[str, float]

    @property
    def file(self) -> VerdictFile:
        return msgspec.json.decode((self.folder / "verdict.json").read_bytes(), type=VerdictFile)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()


class Plain:
    """What agents made for a test have in common: they need nothing."""

    version = ""
    reference = False
    needs_policy = False
    inside = True
    mounts: tuple[Mount, ...] = ()

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        pass


class Shell(Plain):
    """An agent that is one shell script, whatever becomes of it."""

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


def check_graded(ran: Ran, reward: float, *notes: str) -> None:
    """Graded so, with each of the notes in its evidence."""
    assert isinstance(ran.verdict, Graded), ran.verdict
    assert ran.verdict.reward == reward
    seen = [evidence.what for evidence in ran.verdict.evidence]
    for note in notes:
        assert any(note in what for what in seen), seen


def check_void(ran: Ran, cause: Cause, *words: str) -> None:
    """Void for this cause, in these words, and without a reward anywhere in its file."""
    assert isinstance(ran.verdict, Void), ran.verdict
    assert ran.verdict.cause is cause, ran.verdict
    for word in words:
        assert word in ran.verdict.reason
    assert msgspec.json.decode(ran.read("verdict.json"))["verdict"].get("reward") is None


def need_several_users() -> None:
    """Without root a local sandbox has one user only."""
    need("root", None if os.geteuid() == 0 else "only root can start commands as other users")


def long_time() -> str:
    """Seconds to sleep that no other process of this host sleeps."""
    return f"{1_000_000 + secrets.randbelow(1_000_000_000)}"


def processes_with(word: str) -> list[int]:
    """Processes of this host with a word in their command line."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
