"""Lints tasks: every rule over every task, what is invalid named as well."""

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

__all__ = ["ALL_RULES", "LintResult", "lint_invalid", "lint_task", "lint_tasks"]

PLACED = re.compile(r"(?:(?P<file>.+?):(?P<line>\d+): |(?P<only>.+?): )(?P<message>.*)", re.DOTALL)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LintResult:
    """A task with what was found in it."""

    task: str
    path: Path
    findings: tuple[Finding, ...]


def _nothing(_subject: ParsedTask) -> Iterator[Violation]:
    return iter(())


INVALID_TASK = Rule(
    id="invalid-task",
    severity=Severity.ERROR,
    why="The folder is not a valid task, so nothing of it runs.",
    fix="Mend what is named; docs/tasks.md describes the format.",
    check=_nothing,
)
NOT_CHECKED = Rule(
    id="not-checked",
    severity=Severity.ERROR,
    why="A rule stumbled over something in the task, so what it looks for may be there.",
    fix="Report the task; the other rules were checked all the same.",
    check=_nothing,
)
ALL_RULES: tuple[Rule, ...] = (INVALID_TASK, NOT_CHECKED, *RULES)


def lint_tasks(loaded: LoadedTasks, settings: LintSettings | None = None) -> Iterator[LintResult]:
    """Lint tasks one by one, in the order of their paths."""
    every: list[Task | InvalidTask] = [*loaded.tasks, *loaded.invalid]
    for task in sorted(every, key=lambda one: one.path):
        found = lint_task(task, settings) if isinstance(task, Task) else lint_invalid(task)
        yield LintResult(task.name, task.path, found)


def lint_task(task: Task, settings: LintSettings | None = None) -> tuple[Finding, ...]:
    """Everything that the rules find in a task, by file and line."""
    subject = ParsedTask(task, settings or LintSettings())
    found = dict.fromkeys(finding for rule in RULES for finding in _findings(rule, subject))
    return tuple(sorted(found, key=lambda finding: (finding.file, finding.line or 0)))


def _findings(rule: Rule, subject: ParsedTask) -> Iterator[Finding]:
    """What a rule finds. A task that breaks a rule's check is a finding, not the end of lint."""
    try:
        yield from rule.findings(subject)
    except Exception as error:
        logger.debug("rule %s on %s", rule.id, subject.task.path, exc_info=error)
        message = f"{rule.id} could not be checked: {type(error).__name__}: {error}"
        yield NOT_CHECKED.finding(subject.task.name, Violation("task.toml", None, message))


def lint_invalid(task: InvalidTask) -> tuple[Finding, ...]:
    """An invalid task as findings, one for each of its problems."""
    return tuple(_invalid(task.name, task.path, problem) for problem in task.problems)


def _invalid(name: str, folder: Path, problem: str) -> Finding:
    match = PLACED.fullmatch(problem)
    if match is None:
        return INVALID_TASK.finding(name, Violation("task.toml", None, problem))
    path = Path(match["file"] or match["only"])
    if not path.is_relative_to(folder):
        return INVALID_TASK.finding(name, Violation("task.toml", None, problem))
    line = int(match["line"]) if match["line"] else None
    file = path.relative_to(folder).as_posix()
    return INVALID_TASK.finding(name, Violation(file, line, match["message"]))
