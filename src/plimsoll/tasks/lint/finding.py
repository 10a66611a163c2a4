"""What lint has to say about one place in a task."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity"]


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
