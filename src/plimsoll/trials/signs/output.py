"""A stream of the grader's output, fit to be searched, and the signs found in it.

Every pattern used on it begins at the start of a line and has no unbounded repeat that can
match what follows it, so a search stays linear in the length of the text.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.trials.verdicts import Evidence

__all__ = ["Blame", "Output", "Sign", "shorten"]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\r(?=\n)")


class Blame(StrEnum):
    """Whose fault a sign shows."""

    GRADER = "grader"
    TASK = "task"
    WORK = "work"
    """The agent's work, or what it left undone: an honest 0."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One finding. `clause` completes a sentence for a person."""

    blame: Blame
    clause: str
    evidence: Evidence
    sure: bool = True
    """False where the work is blamed only because the grader is not: a failed fetch before
    it may be the real cause."""


class Output:
    """A stream by its name (`stdout` or `stderr`), without colours; lines keep their numbers."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = _ESCAPES.sub("", text)

    def line_number(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def evidence(self, position: int) -> Evidence:
        """The line at a position, quoted."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return Evidence(shorten(line), f"verifier/{self.name}.txt:{self.line_number(position)}")


def shorten(line: str, limit: int = 200) -> str:
    line = " ".join(line[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
