"""What task.toml says: unknown keys, limits, and a verifier that is given nothing."""

from collections.abc import Iterator

from plimsoll.core.toml_lines import KeyPath, line_of
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.text_files import read_text

__all__ = ["NOTHING_CARRIED", "NOT_GIVEN", "UNENFORCED", "UNKNOWN_KEY"]


def _line(subject: ParsedTask, *path: str | int) -> int | None:
    key: KeyPath = path
    return line_of(read_text(subject.task.file) or "", key)


def _check_unknown(subject: ParsedTask) -> Iterator[Violation]:
    for key in subject.task.unknown_keys:
        suggestion = key.suggestion
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        severity = Severity.ERROR if suggestion else Severity.WARNING
        yield Violation("task.toml", key.line, f"unknown key {key.key}{hint}", severity)


def _check_limits(subject: ParsedTask) -> Iterator[Violation]:
    environment, backend = subject.task.environment, subject.settings.backend
    if backend != "local":
        return
    if environment.gpus:
        message = f"gpus = {environment.gpus}: the {backend} backend gives none, no trial can start"
        yield Violation("task.toml", _line(subject, "environment", "gpus"), message, Severity.ERROR)
    if environment.storage_mb is not None:
        key = "storage_mb" if _line(subject, "environment", "storage_mb") else "storage"
        message = f"{key} is not enforced by the {backend} backend"
        yield Violation("task.toml", _line(subject, "environment", key), message)


def _check_given(subject: ParsedTask) -> Iterator[Violation]:
    environment = subject.task.environment
    for key in environment.not_given:
        message = f"{key}: no agent is given any, every trial that asks a policy is void"
        yield Violation("task.toml", _line(subject, "environment", key), message)
    if environment.gpu_types:
        message = "gpu_types is not heeded: a trial gets whatever GPU the engine has"
        line = _line(subject, "environment", "gpu_types")
        yield Violation("task.toml", line, message, Severity.WARNING)


def _check_separate(subject: ParsedTask) -> Iterator[Violation]:
    for index, step in enumerate(subject.task.steps):
        if not step.separate_verifier or step.artifacts or step.verifier.collect:
            continue
        if "/logs/artifacts" in (read_text(step.folder / "instruction.md") or ""):
            continue
        place = ("steps", index, "verifier") if subject.task.is_multi_step else ("verifier",)
        line = _line(subject, *place) or _line(subject, "verifier")
        message = "the verifier runs in a sandbox of its own and no artifact is carried over"
        yield Violation("task.toml", line, message)


UNKNOWN_KEY = Rule(
    id="unknown-key",
    severity=Severity.WARNING,
    why="A key that the format does not know has no effect: what it was to set is not set.",
    fix="Spell it as the format does, or move what is yours to [metadata].",
    check=_check_unknown,
)
UNENFORCED = Rule(
    id="unenforced-limit",
    severity=Severity.WARNING,
    why="A task that relies on a limit behaves otherwise where nothing enforces it.",
    fix="Run the task on a backend that can, or take the limit out.",
    check=_check_limits,
)
NOT_GIVEN = Rule(
    id="not-given",
    severity=Severity.ERROR,
    why="A task that counts on tools that its agent does not get is not the task that was meant.",
    fix="Take the key out where the task can be solved without, or leave the task out.",
    check=_check_given,
)
NOTHING_CARRIED = Rule(
    id="separate-verifier-without-artifacts",
    severity=Severity.ERROR,
    why="A separate verifier sees only what is carried over: here nothing of the agent's work.",
    fix='Name the work under `artifacts = ["/app/…"]`, or gather it with [[verifier.collect]].',
    check=_check_separate,
)
