"""A rule: what it is called, why it matters, what to do, and the check itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plimsoll.tasks.lint.finding import Finding, Severity
from plimsoll.tasks.lint.subject import Subject

__all__ = ["Place", "Rule"]


@dataclass(frozen=True, slots=True)
class Place:
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
    check: Callable[[Subject], Iterator[Place]]

    def findings(self, subject: Subject) -> Iterator[Finding]:
        for place in self.check(subject):
            yield self.finding(subject.task.name, place)

    def finding(self, task: str, place: Place) -> Finding:
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
