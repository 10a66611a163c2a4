"""Lint rules, their violations, and the findings shown to users."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.tasks.lint.parsed_task import ParsedTask

__all__ = ["Finding", "Rule", "Severity", "Violation"]


class Severity(StrEnum):
    """Severity of a finding. An error makes rewards worthless or a task unusable; a warning may."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a rule by a task, with its reason and fix."""

    rule: str
    severity: Severity
    task: str
    file: str
    """Relative to the task folder, with `/`."""
    line: int | None
    message: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Violation:
    """Location and description of a violation."""

    file: str
    line: int | None
    message: str
    severity: Severity | None = None
    """Overrides the severity of the rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A lint rule: its id, reason, fix and check."""

    id: str
    severity: Severity
    why: str
    fix: str
    check: Callable[[ParsedTask], Iterator[Violation]]

    def findings(self, parsed: ParsedTask) -> Iterator[Finding]:
        for violation in self.check(parsed):
            yield self.finding(parsed.task.name, violation)

    def finding(self, task: str, violation: Violation) -> Finding:
        return Finding(
            rule=self.id,
            severity=violation.severity or self.severity,
            task=task,
            file=violation.file,
            line=violation.line,
            message=violation.message,
            why=self.why,
            fix=self.fix,
        )
