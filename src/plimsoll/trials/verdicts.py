"""Verdicts, and the one table that defines each cause of a void trial.

A trial ends as `Graded`, which carries a reward, or as `Void`, which never does. Retries, masks,
statistics, alarms and all displays read `CAUSES`; nothing else interprets a cause.

The texts of a verdict are sanitized on creation, so they are safe to write and to show,
whatever names a grader, a test or an agent chose.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec
from msgspec.structs import force_setattr

from plimsoll.core.endings import Ending
from plimsoll.core.text import safe_line, safe_names

__all__ = ["CAUSES", "Cause", "CauseRule", "Evidence", "Graded", "Verdict", "Void"]

_LONGEST = 4000
"""Maximum length of a reason or of evidence, in characters."""


class Cause(StrEnum):
    """Cause of a void trial."""

    SANDBOX = "sandbox"
    POLICY = "policy"
    GRADER = "grader"
    TASK = "task"
    STALE = "stale"
    LOST = "lost"
    CANCELLED = "cancelled"
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class CauseRule:
    """Consequences of a cause."""

    retries: int
    """How often a trial that is void for this cause is retried."""
    against_task: bool
    """The task is to blame: once it is excluded, a resume does not try it again."""
    stops_run: bool
    """A single void stops the run."""
    meaning: str
    """Description for users."""
    remedy: str
    """Advice for users."""


CAUSES: dict[Cause, CauseRule] = {
    Cause.SANDBOX: CauseRule(
        retries=2,
        against_task=False,
        stops_run=False,
        meaning="the sandbox could not be started or kept alive, or the agent could not work in it",
        remedy="read the reason: an image, a set-up command, a limit or the host is at fault",
    ),
    Cause.POLICY: CauseRule(
        retries=2,
        against_task=False,
        stops_run=False,
        meaning="the policy's server did not answer",
        remedy="check the inference server",
    ),
    Cause.GRADER: CauseRule(
        retries=1,
        against_task=True,
        stops_run=False,
        meaning="the task's tests did not grade",
        remedy="read verifier/stdout.txt and verifier/stderr.txt; fix tests/ or their dependencies",
    ),
    Cause.TASK: CauseRule(
        retries=0,
        against_task=True,
        stops_run=False,
        meaning="the task itself is broken",
        remedy="fix the task, or exclude it with --task",
    ),
    Cause.STALE: CauseRule(
        retries=3,
        against_task=False,
        stops_run=False,
        meaning="the sample was too stale to train on",
        remedy="none needed; if there are many, allow more staleness or shorten the trials",
    ),
    Cause.LOST: CauseRule(
        retries=3,
        against_task=False,
        stops_run=False,
        meaning="the worker that ran it, or its results, are gone",
        remedy="read the reason; if there are many, check the end of the workers' logs",
    ),
    Cause.CANCELLED: CauseRule(
        retries=0,
        against_task=False,
        stops_run=False,
        meaning="it was cancelled before it was graded",
        remedy="run it again",
    ),
    Cause.BUG: CauseRule(
        retries=0,
        against_task=False,
        stops_run=True,
        meaning="Plimsoll itself failed",
        remedy="report it with bug.txt of the trial",
    ),
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """An observation behind a verdict, and its source."""

    what: str
    where: str = ""
    """A file of the trial and a line, e.g. `verifier/stderr.txt:31`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", safe_line(self.what, _LONGEST))
        object.__setattr__(self, "where", safe_line(self.where, _LONGEST))


class Graded(msgspec.Struct, frozen=True, tag_field="verdict", tag="graded"):
    """The task's tests ran and graded the work."""

    reward: float
    ending: Ending
    rewards: dict[str, float] = {}
    """All numbers that the grader wrote, by name; `reward` is one of them or their mean."""
    evidence: tuple[Evidence, ...] = ()
    """Warnings that do not change the verdict, e.g. a grader that exited with 1."""

    def __post_init__(self) -> None:
        names = dict(zip(safe_names([*self.rewards]), self.rewards.values(), strict=True))
        force_setattr(self, "rewards", names)

    @property
    def verdict(self) -> Literal["graded"]:
        return "graded"


class Void(msgspec.Struct, frozen=True, tag_field="verdict", tag="void"):
    """No reward. `reason` is one line for users."""

    cause: Cause
    reason: str
    evidence: tuple[Evidence, ...] = ()
    ending: Ending | None = None
    """How the agent ended; None if it did not get that far."""

    def __post_init__(self) -> None:
        force_setattr(self, "reason", safe_line(self.reason, _LONGEST))

    @property
    def verdict(self) -> Literal["void"]:
        return "void"


Verdict = Graded | Void
