"""The folder of a trial: what was printed, how long each phase took, and the verdict.

A folder is used once. A trial whose folder exists already, because a power cut took an earlier
trial of the same ticket out of the ledger, writes to `<folder>~2`, the next one to `<folder>~3`.

verdict.json                 written last, by one rename: a folder without it is unfinished
build.txt                    what the image's build printed, where it was built now
sandbox-left.txt             why its sandbox could not be removed, where that is so
trajectory.jsonl.zst         what the policy was asked and said, where the agent has one
agent/stdout.txt, stderr.txt
verifier/stdout.txt, stderr.txt, logs/       what the tests printed and wrote
artifacts/                   what the task asks to keep
not-kept.txt                 what of that, and of the agent's logs, was left out, and why
steps/NAME/agent, verifier   the same for each step of a multi-step task
"""

import itertools
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import force_setattr

from plimsoll.core.endings import Ending
from plimsoll.core.errors import SandboxError, TransferError
from plimsoll.core.text import safe_line, safe_text
from plimsoll.sandboxes.protocol import ExecResult, OnOutput, Sandbox, Stream
from plimsoll.trials.verdicts import Verdict

__all__ = ["AgentEnd", "Phases", "StepRecord", "TrialRecord", "VerdictFile", "folder_names"]

_LARGEST_LOG = 16 << 20
_LONGEST_NOTE = 1000


class AgentEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the agent ended a step, apart from what its work is worth."""

    ending: Ending
    detail: str = ""
    exit_code: int | None = None
    turns: int | None = None
    """Exchanges with the policy; None for an agent that has none."""
    tokens: int | None = None
    """What the session had counted by then, prompts and answers."""

    def __post_init__(self) -> None:
        force_setattr(self, "detail", safe_line(self.detail))


class VerdictFile(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict.json`."""

    task: str
    attempt: int
    agent: str
    backend: str
    verdict: Verdict
    steps: dict[str, Verdict]
    """What each step came to; one, called main, in a single-step task."""
    ends: dict[str, AgentEnd]
    """How the agent ended each step that it came to the end of."""
    tests: dict[str, str]
    """The digest of the tests that graded each step."""
    seconds: float
    phases: dict[str, float]
    """Seconds by phase. `paused` is the part of `agent` in which the policy was paused for new
    weights, which does not count towards the agent's time."""
    started: float
    sandbox: str = ""
    """The one that the agent had, by the name its backend knows it by; "" where it had none."""
    trial: str = ""
    """The trial's id. A second trial of the same ticket has another."""


def folder_names(folder: Path) -> Iterator[Path]:
    """The names of a trial's folder: the usual one, then those of later uses."""
    yield folder
    for number in itertools.count(2):
        yield folder.with_name(f"{folder.name}~{number}")


class Phases:
    """Where a trial's time goes. A phase that comes again is added to."""

    def __init__(self, on_phase: Callable[[str], None] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._on_phase = on_phase

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        started = time.monotonic()
        if self._on_phase is not None:
            self._on_phase(name)
        try:
            yield
        finally:
            self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 6)


class Log:
    """Files that take what a command prints while it prints it, up to a size."""

    def __init__(self, files: dict[Stream, Path]) -> None:
        self._files = files
        self._room = dict.fromkeys(files, _LARGEST_LOG)

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        room = self._room[stream]
        if room <= 0:
            return
        self._room[stream] = room - len(chunk)
        try:
            with self._files[stream].open("ab") as file:
                file.write(chunk[:room])
                if len(chunk) >= room:
                    note = f"\n… the rest is left out after {_LARGEST_LOG:,} bytes …\n"
                    file.write(note.encode())
        except OSError:
            # A full disk is for the verdict to fail on, not for the command that prints.
            self._room[stream] = 0


class StepRecord:
    """The agent's and the verifier's files of one step."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self.prefix = prefix
        """What stands before a file's name in evidence, e.g. `steps/first/`."""

    @property
    def agent_log(self) -> OnOutput:
        return self._log("agent")

    @property
    def artifacts(self) -> Path:
        return self._folder / "artifacts"

    @property
    def verifier_folder(self) -> Path:
        return self._made("verifier")

    def keep_output(self, part: str, result: ExecResult) -> None:
        """Keep what a finished command printed, as its result holds it."""
        folder = self._made(part)
        (folder / "stdout.txt").write_bytes(result.stdout.data)
        (folder / "stderr.txt").write_bytes(result.stderr.data)

    async def take_logs(
        self, sandbox: Sandbox, source: str, *, limit: int, entries: int
    ) -> list[str]:
        """Keep what the agent itself wrote to its logs; what could not be kept, a line each."""
        target = self._made("agent") / "logs"
        try:
            done = await sandbox.download(source, target, limit=limit, entries=entries)
        except TransferError as error:
            return [str(error)]
        return [f"{source}: {what}" for what in done.skipped]

    def write_notes(self, notes: list[str]) -> None:
        """Add to the list of what was to be kept and could not."""
        if notes:
            with (self._folder / "not-kept.txt").open("a", encoding="utf-8") as file:
                file.writelines(f"{safe_line(note, _LONGEST_NOTE)}\n" for note in notes)

    def places_of(self, words: str) -> Iterator[str]:
        """Where words were first printed, a place for each file of output that has them."""
        for part in ("agent", "verifier"):
            for name in ("stdout.txt", "stderr.txt"):
                try:
                    text = (self._folder / part / name).read_bytes()
                except OSError:
                    continue
                if (at := text.find(words.encode())) >= 0:
                    line = text.count(b"\n", 0, at) + 1
                    yield f"{self.prefix}{part}/{name}:{line}"

    def _log(self, part: str) -> OnOutput:
        folder = self._made(part)
        files: dict[Stream, Path] = {
            "stdout": folder / "stdout.txt",
            "stderr": folder / "stderr.txt",
        }
        for file in files.values():
            file.unlink(missing_ok=True)
        return Log(files)

    def _made(self, part: str) -> Path:
        folder = self._folder / part
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class TrialRecord:
    """Writes one trial's folder, which it makes: an existing folder is never written to."""

    def __init__(self, folder: Path) -> None:
        self.folder = _made(folder)

    @property
    def build_log(self) -> OnOutput:
        file = self.folder / "build.txt"
        return Log({"stdout": file, "stderr": file})

    def step(self, name: str | None) -> StepRecord:
        """A step's files; without a name those of the task's only step."""
        if name is None:
            return StepRecord(self.folder, "")
        return StepRecord(self.folder / "steps" / name, f"steps/{name}/")

    def write_verdict(self, verdict: VerdictFile) -> None:
        text = msgspec.json.format(msgspec.json.encode(verdict), indent=2)
        half = self.folder / ".verdict.json"
        half.write_bytes(text + b"\n")
        os.replace(half, self.folder / "verdict.json")  # noqa: PTH105

    async def close(self, sandbox: Sandbox) -> None:
        """Close a sandbox. That it could not be removed is noted, and changes no verdict: its
        backend tries again, and says what is left."""
        try:
            await sandbox.close()
        except SandboxError as error:
            left = self.folder / "sandbox-left.txt"
            with suppress(OSError), left.open("a", encoding="utf-8") as file:
                file.write(f"{error}\n")

    def write_bug(self, text: str) -> None:
        (self.folder / "bug.txt").write_text(safe_text(text), "utf-8")


def _made(folder: Path) -> Path:
    """Make the folder under the first of its names that is free."""
    names = folder_names(folder)
    while True:
        name = next(names)
        with suppress(FileExistsError):
            name.mkdir(parents=True)
            return name
