"""Lint rules about task.toml and the compose file."""

from collections.abc import Iterator

from plimsoll.core.toml_lines import KeyPath, line_of
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.text_files import read_text

__all__ = ["COMPOSE_FILE_NAME", "NOT_GIVEN", "NO_ARTIFACTS", "UNENFORCED_LIMIT", "UNKNOWN_KEY"]


def _line(parsed: ParsedTask, *path: str | int) -> int | None:
    key: KeyPath = path
    return line_of(read_text(parsed.task.file) or "", key)


def _check_unknown(parsed: ParsedTask) -> Iterator[Violation]:
    for key in parsed.task.unknown_keys:
        suggestion = key.suggestion
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        severity = Severity.ERROR if suggestion else Severity.WARNING
        yield Violation("task.toml", key.line, f"unknown key {key.key}{hint}", severity)


def _check_limits(parsed: ParsedTask) -> Iterator[Violation]:
    environment, backend = parsed.task.environment, parsed.settings.backend
    if backend != "local":
        return
    if environment.gpus:
        message = (
            f"gpus = {environment.gpus}: the {backend} backend has no GPUs, so no trial can start"
        )
        yield Violation("task.toml", _line(parsed, "environment", "gpus"), message, Severity.ERROR)
    if environment.storage_mb is not None:
        key = "storage_mb" if _line(parsed, "environment", "storage_mb") else "storage"
        message = f"{key} is not enforced by the {backend} backend"
        yield Violation("task.toml", _line(parsed, "environment", key), message)


def _check_unsupported(parsed: ParsedTask) -> Iterator[Violation]:
    environment = parsed.task.environment
    for key in environment.unsupported_keys:
        message = f"{key}: not supported; every trial of an agent with a policy is void"
        yield Violation("task.toml", _line(parsed, "environment", key), message)
    if environment.gpu_types:
        message = "gpu_types is ignored: a trial gets any GPU that the backend has"
        line = _line(parsed, "environment", "gpu_types")
        yield Violation("task.toml", line, message, Severity.WARNING)


def _check_separate(parsed: ParsedTask) -> Iterator[Violation]:
    for index, step in enumerate(parsed.task.steps):
        if not step.separate_verifier or step.artifacts or step.verifier.collect:
            continue
        if "/logs/artifacts" in (read_text(step.folder / "instruction.md") or ""):
            continue
        table = ("steps", index, "verifier") if parsed.task.is_multi_step else ("verifier",)
        line = _line(parsed, *table) or _line(parsed, "verifier")
        message = "the verifier runs in its own sandbox and no artifact is copied to it"
        yield Violation("task.toml", line, message)


UNKNOWN_KEY = Rule(
    id="unknown-key",
    severity=Severity.WARNING,
    why="An unknown key has no effect, so the intended setting is missing.",
    fix="Use the spelling of the format, or move your own keys to [metadata].",
    check=_check_unknown,
)
UNENFORCED_LIMIT = Rule(
    id="unenforced-limit",
    severity=Severity.WARNING,
    why="A task that relies on a limit behaves differently if the limit is not enforced.",
    fix="Run the task on a backend that enforces the limit, or remove the limit.",
    check=_check_limits,
)
NOT_GIVEN = Rule(
    id="not-given",
    severity=Severity.ERROR,
    why="The agent lacks the tools that the task expects, so its reward would be misleading.",
    fix="Remove the key if the task can be solved without it, or exclude the task.",
    check=_check_unsupported,
)
NO_ARTIFACTS = Rule(
    id="separate-verifier-without-artifacts",
    severity=Severity.ERROR,
    why="A separate verifier sees only copied artifacts: here nothing of the agent's work.",
    fix='List the work in `artifacts = ["/app/…"]`, or collect it with [[verifier.collect]].',
    check=_check_separate,
)


WRONG_NAMES = ("docker-compose.yml", "compose.yaml", "compose.yml")


def _check_compose(parsed: ParsedTask) -> Iterator[Violation]:
    if parsed.task.compose_file is not None:
        return
    for name in WRONG_NAMES:
        if (parsed.task.environment_dir / name).is_file():
            yield Violation(
                f"environment/{name}", None, f"{name} is ignored; only docker-compose.yaml is read"
            )


COMPOSE_FILE_NAME = Rule(
    id="compose-file-name",
    severity=Severity.ERROR,
    why="Its services are not started, and the task runs without them.",
    fix="Rename it to environment/docker-compose.yaml.",
    check=_check_compose,
)
