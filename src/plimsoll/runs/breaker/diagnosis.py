"""A trip as it is told to a person: the rule, the evidence, what to do, how to go on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.runs.breaker.watch import Trip
from plimsoll.runs.results import Diagnosis

__all__ = ["Circumstances", "diagnose", "remedies"]

SHOWN_REASONS = 3
SHOWN_FETCHES = 5

# What a void reason says of a fetch: by the verdict on a grader, or by git, curl and others in
# the output of a build or a set-up command.
_FETCHES = (
    re.compile(r"could not fetch `([^`]+)`"),
    re.compile(r"unable to access '([^']+)'"),
    re.compile(r"Could not resolve (?:host|proxy): ([^\s,;]+)"),
    re.compile(r"unable to resolve host address [‘'`]([^'’`]+)"),
    re.compile(r"Failed to (?:fetch|download):? `([^`]+)`"),
)
_NAMELESS = re.compile(
    r"could not fetch what it needs|Temporary failure in name resolution|Name or service not known"
    r"|Network is unreachable|No matching distribution found"
)
_MISSING = re.compile(r"could not import|which is not installed|needs /\S+, which is not there")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the run was about, in words that fit a command line."""

    path: str
    validate: str
    """The command that validates its tasks."""
    unstaged: tuple[str, ...] = ()
    """What the task of the example fetches and is not staged."""
    again: str
    """The command that runs it once more."""
    keep_going: str
    """The same, to its end whatever the breaker finds."""


def diagnose(
    trip: Trip, around: Circumstances, *, look: str | None, stopped: bool = True
) -> Diagnosis:
    """All that is to be said of a trip. `look` is the folder of its example."""
    shown = trip.voids[:SHOWN_REASONS]
    evidence = [f"{void.count} × void: {void.cause} · {void.reason}" for void in shown]
    if others := trip.voids[SHOWN_REASONS:]:
        count = sum(void.count for void in others)
        evidence.append(f"{count} × void for {len(others)} other reasons")
    return Diagnosis(
        rule=trip.rule,
        said=trip.said,
        evidence=[*evidence, *trip.notes],
        look=look,
        remedies=[
            *remedies([void.reason for void in trip.voids], around.path, around.unstaged),
            f"which tasks can be graded: {around.validate}",
        ],
        go_on=[f"mended: {around.again}", f"as it is: {around.keep_going}"],
        stopped=stopped,
    )


def remedies(reasons: Sequence[str], path: str, unstaged: Sequence[str] = ()) -> list[str]:
    """What to do where trials of the tasks at `path` are void for such reasons.

    `unstaged` is what such a task fetches, and may be what is missing.
    """
    found: list[str] = []
    fetches = dict.fromkeys(name for reason in reasons if (name := _fetched(reason)) is not None)
    if fetches:
        named = ", ".join(f"`{name}`" for name in list(fetches)[:SHOWN_FETCHES] if name)
        what = f"{named} cannot be fetched in a sandbox" if named else "a fetch fails in a sandbox"
        found.append(f"{what}: plimsoll stage {path} --to DIR")
    missing = any(_MISSING.search(reason) for reason in reasons)
    if missing and unstaged and not fetches:
        named = ", ".join(f"`{one}`" for one in unstaged[:SHOWN_FETCHES])
        found.append(f"it may come from {named}, not staged: plimsoll stage {path} --to DIR")
    if missing:
        found.append(f"where what is missing was to come from: plimsoll lint {path}")
    return found


def _fetched(reason: str) -> str | None:
    """What a reason says could not be fetched; empty where it does not name it."""
    for pattern in _FETCHES:
        if match := pattern.search(reason):
            return match[1]
    return "" if _NAMELESS.search(reason) else None
