"""Record of a trial: its folder with output, phase times and the verdict.

A folder is used once. If a power failure removed an earlier trial of the same ticket from the
ledger, its folder still exists; the next trial writes to `<folder>~2`, then to `<folder>~3`.

verdict.json                 written last and atomically: a folder without it is unfinished
build.txt                    output of the image build, if the image was built for this trial
sandbox-left.txt             why the sandbox could not be removed
trajectory.jsonl.zst         exchanges with the policy
agent/stdout.txt, stderr.txt
verifier/stdout.txt, stderr.txt, logs/       output and log files of the tests
artifacts/                   artifacts of the task
not-kept.txt                 artifacts and agent logs that were not kept, with the reasons
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
from plimsoll.core.text import safe_line
from plimsoll.sandboxes.protocol import ExecResult, OnOutput, Sandbox, Stream
from plimsoll.trials.verdicts import Verdict

__all__ = ["AgentEnd", "Phases", "StepRecord", "TrialRecord", "VerdictFile", "folder_names"]

_MAX_LOG_BYTES = 16 << 20
_MAX_NOTE_LENGTH = 1000


class AgentEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the agent ended a step, independent of the reward."""

    ending: Ending
    detail: str = ""
    exit_code: int | None = None
    turns: int | None = None
    """Exchanges with the policy; None for an agent without a policy."""
    tokens: int | None = None
    """Prompt and answer tokens of the session at the end of the step."""

    def __post_init__(self) -> None:
        force_setattr(self, "detail", safe_line(self.detail))


class VerdictFile(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `verdict.json`."""

    task: str
    attempt: int
    agent: str
    backend: str
    verdict: Verdict
    steps: dict[str, Verdict]
    """Verdicts by step; a single-step task has one step, main."""
    ends: dict[str, AgentEnd]
    """How the agent ended each step that it completed."""
    tests: dict[str, str]
    """The digest of the tests that graded each step."""
    seconds: float
    phases: dict[str, float]
    """Seconds by phase. `paused` is the part of `agent` in which the policy was paused for new
    weights; it does not count towards the agent's time."""
    started: float
    sandbox: str = ""
    """The backend's name of the agent's sandbox; "" if there was none."""
    trial: str = ""
    """The trial's id. Another trial of the same ticket has another id."""


def folder_names(folder: Path) -> Iterator[Path]:
    """Yield the possible names of a trial's folder: the default, then `~2`, `~3` and so on."""
    yield folder
    for number in itertools.count(2):
        yield folder.with_name(f"{folder.name}~{number}")


class Phases:
    """Seconds by phase. The times of repeated phases add up."""

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
    """Log files of a running command, up to a size limit."""

    def __init__(self, files: dict[Stream, Path]) -> None:
        self._files = files
        self._remaining = dict.fromkeys(files, _MAX_LOG_BYTES)

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        remaining = self._remaining[stream]
        if remaining <= 0:
            return
        self._remaining[stream] = remaining - len(chunk)
        try:
            with self._files[stream].open("ab") as file:
                file.write(chunk[:remaining])
                if len(chunk) >= remaining:
                    note = f"\n… truncated after {_MAX_LOG_BYTES:,} bytes …\n"
                    file.write(note.encode())
        except OSError:
            # On a full disk, writing the verdict fails; the running command must not.
            self._remaining[stream] = 0


class StepRecord:
    """The agent's and the verifier's files of one step."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self.prefix = prefix
        """Prefix of file names in evidence, e.g. `steps/first/`."""

    @property
    def agent_log(self) -> OnOutput:
        return self._log("agent")

    @property
    def artifacts(self) -> Path:
        return self._folder / "artifacts"

    @property
    def verifier_folder(self) -> Path:
        return self._make_folder("verifier")

    def save_output(self, part: str, result: ExecResult) -> None:
        """Save the output of a finished command."""
        folder = self._make_folder(part)
        (folder / "stdout.txt").write_bytes(result.stdout.data)
        (folder / "stderr.txt").write_bytes(result.stderr.data)

    async def save_logs(
        self, sandbox: Sandbox, source: str, *, limit: int, entries: int
    ) -> list[str]:
        """Save the agent's own logs; return one line for each file that could not be saved."""
        target = self._make_folder("agent") / "logs"
        try:
            done = await sandbox.download(source, target, limit=limit, entries=entries)
        except TransferError as error:
            return [str(error)]
        return [f"{source}: {reason}" for reason in done.skipped]

    def write_notes(self, notes: list[str]) -> None:
        """Append to the list of files that were not kept."""
        if notes:
            with (self._folder / "not-kept.txt").open("a", encoding="utf-8") as file:
                file.writelines(f"{safe_line(note, _MAX_NOTE_LENGTH)}\n" for note in notes)

    def find_output(self, text: str) -> Iterator[str]:
        """Yield the first location of a text in each output file that contains it."""
        for part in ("agent", "verifier"):
            for name in ("stdout.txt", "stderr.txt"):
                try:
                    output = (self._folder / part / name).read_bytes()
                except OSError:
                    continue
                if (at := output.find(text.encode())) >= 0:
                    line = output.count(b"\n", 0, at) + 1
                    yield f"{self.prefix}{part}/{name}:{line}"

    def _log(self, part: str) -> OnOutput:
        folder = self._make_folder(part)
        files: dict[Stream, Path] = {
            "stdout": folder / "stdout.txt",
            "stderr": folder / "stderr.txt",
        }
        for file in files.values():
            file.unlink(missing_ok=True)
        return Log(files)

    def _make_folder(self, part: str) -> Path:
        folder = self._folder / part
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class TrialRecord:
    """Creates and writes the folder of one trial; never writes to an existing folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = _make_folder(folder)

    @property
    def build_log(self) -> OnOutput:
        file = self.folder / "build.txt"
        return Log({"stdout": file, "stderr": file})

    def step(self, name: str | None) -> StepRecord:
        """Return the record of a step; None is the step of a single-step task."""
        if name is None:
            return StepRecord(self.folder, "")
        return StepRecord(self.folder / "steps" / name, f"steps/{name}/")

    def write_verdict(self, verdict: VerdictFile) -> None:
        text = msgspec.json.format(msgspec.json.encode(verdict), indent=2)
        partial = self.folder / ".verdict.json"
        partial.write_bytes(text + b"\n")
        os.replace(partial, self.folder / "verdict.json")  # noqa: PTH105

    async def close(self, sandbox: Sandbox) -> None:
        """Close a sandbox. A failure is recorded and does not change the verdict: the backend
        tries again and reports remaining sandboxes."""
        try:
            await sandbox.close()
        except SandboxError as error:
            note = self.folder / "sandbox-left.txt"
            with suppress(OSError), note.open("a", encoding="utf-8") as file:
                file.write(f"{error}\n")


def _make_folder(folder: Path) -> Path:
    """Create the folder under the first free name."""
    names = folder_names(folder)
    while True:
        name = next(names)
        with suppress(FileExistsError):
            name.mkdir(parents=True)
            return name
