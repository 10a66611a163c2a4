"""Output streams of a grader, and the signs found in them.

All patterns begin at the start of a line, and no unbounded repeat can match the text that
follows it. So a search is linear in the length of the text.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.trials.verdicts import Evidence

__all__ = ["Blame", "Output", "Sign", "shorten"]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\r(?=\n)")


class Blame(StrEnum):
    """The party at fault."""

    GRADER = "grader"
    TASK = "task"
    WORK = "work"
    """The agent's work, done or missing: a valid 0."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign. `clause` is part of a sentence for users."""

    blame: Blame
    clause: str
    evidence: Evidence
    sure: bool = True
    """False if the work is blamed only because the grader is not: an earlier failed fetch may be
    the real cause."""


class Output:
    """A stream (`stdout` or `stderr`) without colour codes; line numbers are unchanged."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = _ESCAPES.sub("", text)

    def line_number(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def evidence(self, position: int) -> Evidence:
        """Return the line at a position as evidence."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return Evidence(shorten(line), f"verifier/{self.name}.txt:{self.line_number(position)}")


def shorten(line: str, limit: int = 200) -> str:
    line = " ".join(line[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
