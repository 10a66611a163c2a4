"""What lint has to say about one place in a task.

A rule: what it is called, why it matters, what to do, and the check itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.tasks.lint.parsed_task import ParsedTask

__all__ = ["Finding", "Rule", "Severity", "Violation"]


class Severity(StrEnum):
    """An error makes rewards worthless or a task unusable; a warning may."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a task breaks, where, why it matters and what to do."""

    rule: str
    severity: Severity
    task: str
    file: str
    """Relative to the task's folder, with `/`."""
    line: int | None
    message: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Violation:
    """Where a rule is broken and what is wrong there."""

    file: str
    line: int | None
    message: str
    severity: Severity | None = None
    """Where it differs from the rule's own."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of lint."""

    id: str
    severity: Severity
    why: str
    fix: str
    check: Callable[[ParsedTask], Iterator[Violation]]

    def findings(self, subject: ParsedTask) -> Iterator[Finding]:
        for place in self.check(subject):
            yield self.finding(subject.task.name, place)

    def finding(self, task: str, place: Violation) -> Finding:
        return Finding(
            rule=self.id,
            severity=place.severity or self.severity,
            task=task,
            file=place.file,
            line=place.line,
            message=place.message,
            why=self.why,
            fix=self.fix,
        )
