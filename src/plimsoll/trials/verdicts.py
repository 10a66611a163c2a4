"""Verdicts, and the one table that says what each cause of a void trial means.

A trial ends as `Graded`, the only thing that carries a reward, or as `Void`, which never
does. Retries, masks, statistics, alarms and every display read `CAUSES`; nothing else
decides what a cause means.

Whatever a grader, a test or an agent named, the texts of a verdict are safe to write and to show:
they are made so when it is made.
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
"""Characters of a reason or of a piece of evidence."""


class Cause(StrEnum):
    """Why a trial is void."""

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
    """What follows from a cause."""

    retries: int
    """How often a rollout void for this cause is tried again."""
    against_task: bool
    """Counts towards the task's quarantine."""
    stops_run: bool
    """One occurrence is enough to stop the run and ask a person."""
    meaning: str
    """What happened, for a person."""
    remedy: str
    """What to do about it, for a person."""


CAUSES: dict[Cause, CauseRule] = {
    Cause.SANDBOX: CauseRule(
        retries=2,
        against_task=False,
        stops_run=False,
        meaning="the sandbox could not be had or kept alive, or the agent could not work in it",
        remedy="read the reason: an image, a set-up command, a limit or the host is at fault",
    ),
    Cause.POLICY: CauseRule(
        retries=2,
        against_task=False,
        stops_run=False,
        meaning="the policy's server did not answer",
        remedy="look at the inference server",
    ),
    Cause.GRADER: CauseRule(
        retries=1,
        against_task=True,
        stops_run=False,
        meaning="the task's tests did not grade",
        remedy="read verifier/stdout.txt and verifier/stderr.txt; mend tests/ or what they need",
    ),
    Cause.TASK: CauseRule(
        retries=0,
        against_task=True,
        stops_run=False,
        meaning="the task itself is broken",
        remedy="mend the task, or leave it out with --task",
    ),
    Cause.STALE: CauseRule(
        retries=3,
        against_task=False,
        stops_run=False,
        meaning="it would have been trained on too late",
        remedy="none needed; if there are many, allow more staleness or shorten the trials",
    ),
    Cause.LOST: CauseRule(
        retries=3,
        against_task=False,
        stops_run=False,
        meaning="the worker that ran it is gone, or what it left",
        remedy="read the reason; if there are many, look at the workers' last words",
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
    """A fact that a verdict rests on: what was seen, and where it can be read again."""

    what: str
    where: str = ""
    """A file of the trial with a line, e.g. `verifier/stderr.txt:31`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", safe_line(self.what, _LONGEST))
        object.__setattr__(self, "where", safe_line(self.where, _LONGEST))


class Graded(msgspec.Struct, frozen=True, tag_field="verdict", tag="graded"):
    """The task's tests ran and said what the work is worth."""

    reward: float
    ending: Ending
    rewards: dict[str, float] = {}
    """Every number that the grader wrote, by name; `reward` among them or made of them."""
    evidence: tuple[Evidence, ...] = ()
    """Warnings that do not change the verdict, e.g. a grader that exited with 1."""

    def __post_init__(self) -> None:
        names = dict(zip(safe_names([*self.rewards]), self.rewards.values(), strict=True))
        force_setattr(self, "rewards", names)

    @property
    def verdict(self) -> Literal["graded"]:
        return "graded"


class Void(msgspec.Struct, frozen=True, tag_field="verdict", tag="void"):
    """No reward. `reason` is one line for a person."""

    cause: Cause
    reason: str
    evidence: tuple[Evidence, ...] = ()
    ending: Ending | None = None
    """How the agent ended, where it got that far."""

    def __post_init__(self) -> None:
        force_setattr(self, "reason", safe_line(self.reason, _LONGEST))

    @property
    def verdict(self) -> Literal["void"]:
        return "void"


Verdict = Graded | Void
