"""Linter: applies all rules to all tasks and reports invalid tasks too."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plimsoll.tasks.lint.parsed_task import LintSettings, ParsedTask
from plimsoll.tasks.lint.rule import Finding, Rule, Severity, Violation
from plimsoll.tasks.lint.rules import RULES
from plimsoll.tasks.loader import InvalidTask, LoadedTasks
from plimsoll.tasks.task import Task

__all__ = ["ALL_RULES", "LintResult", "lint_task", "lint_tasks"]

LOCATED = re.compile(r"(?:(?P<file>.+?):(?P<line>\d+): |(?P<only>.+?): )(?P<message>.*)", re.DOTALL)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LintResult:
    """The findings of one task."""

    task: str
    path: Path
    findings: tuple[Finding, ...]


def _no_violations(_parsed: ParsedTask) -> Iterator[Violation]:
    return iter(())


INVALID_TASK = Rule(
    id="invalid-task",
    severity=Severity.ERROR,
    why="The folder is not a valid task and cannot run.",
    fix="Fix the reported problem; docs/tasks.md describes the format.",
    check=_no_violations,
)
NOT_CHECKED = Rule(
    id="not-checked",
    severity=Severity.ERROR,
    why="A rule failed on this task, so the fault that it detects may be present.",
    fix="Report the task; all other rules were checked.",
    check=_no_violations,
)
ALL_RULES: tuple[Rule, ...] = (INVALID_TASK, NOT_CHECKED, *RULES)


def lint_tasks(loaded: LoadedTasks, settings: LintSettings | None = None) -> Iterator[LintResult]:
    """Lint tasks one by one, sorted by path."""
    every: list[Task | InvalidTask] = [*loaded.tasks, *loaded.invalid]
    for task in sorted(every, key=lambda one: one.path):
        found = lint_task(task, settings) if isinstance(task, Task) else lint_invalid(task)
        yield LintResult(task.name, task.path, found)


def lint_task(task: Task, settings: LintSettings | None = None) -> tuple[Finding, ...]:
    """Return all findings of a task, sorted by file and line."""
    parsed = ParsedTask(task, settings or LintSettings())
    found = dict.fromkeys(finding for rule in RULES for finding in _findings(rule, parsed))
    return tuple(sorted(found, key=lambda finding: (finding.file, finding.line or 0)))


def _findings(rule: Rule, parsed: ParsedTask) -> Iterator[Finding]:
    """Yield the findings of a rule. An exception in its check becomes a finding."""
    try:
        yield from rule.findings(parsed)
    except Exception as error:
        logger.debug("rule %s on %s", rule.id, parsed.task.path, exc_info=error)
        message = f"{rule.id} could not be checked: {type(error).__name__}: {error}"
        yield NOT_CHECKED.finding(parsed.task.name, Violation("task.toml", None, message))


def lint_invalid(task: InvalidTask) -> tuple[Finding, ...]:
    """Return one finding for each problem of an invalid task."""
    return tuple(_invalid(task.name, task.path, problem) for problem in task.problems)


def _invalid(name: str, folder: Path, problem: str) -> Finding:
    match = LOCATED.fullmatch(problem)
    if match is None:
        return INVALID_TASK.finding(name, Violation("task.toml", None, problem))
    path = Path(match["file"] or match["only"])
    if not path.is_relative_to(folder):
        return INVALID_TASK.finding(name, Violation("task.toml", None, problem))
    line = int(match["line"]) if match["line"] else None
    file = path.relative_to(folder).as_posix()
    return INVALID_TASK.finding(name, Violation(file, line, match["message"]))
