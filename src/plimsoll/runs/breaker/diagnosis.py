"""The diagnosis of a trip for a person: the rule, the evidence, remedies and next commands."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.runs.breaker.watch import Trip
from plimsoll.runs.files.results import Diagnosis

__all__ = ["RunContext", "diagnose", "remedies"]

SHOWN_REASONS = 3
SHOWN_FETCHES = 5

# Failed fetches named in void reasons: by the verdict on a grader, or by git, curl and others
# in the output of a build or set-up command.
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
_MISSING = re.compile(r"could not import|which is not installed|needs /\S+, which is missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The context of a run, quoted for a command line."""

    path: str
    validate: str
    """The command that validates its tasks."""
    unstaged: tuple[str, ...] = ()
    """Fetches of the example's task that are not staged."""
    again: str
    """The command that runs it again."""
    keep_going: str
    """The command that runs it to the end, ignoring the breaker."""


def diagnose(
    trip: Trip, context: RunContext, *, look: str | None, stopped: bool = True
) -> Diagnosis:
    """The diagnosis of a trip. `look` is the folder of its example."""
    shown = trip.voids[:SHOWN_REASONS]
    evidence = [f"{void.count} × void: {void.cause} · {void.reason}" for void in shown]
    if others := trip.voids[SHOWN_REASONS:]:
        count = sum(void.count for void in others)
        evidence.append(f"{count} × void for {len(others)} other reasons")
    return Diagnosis(
        rule=trip.rule,
        said=trip.message,
        evidence=[*evidence, *trip.notes],
        look=look,
        remedies=[
            *remedies([void.reason for void in trip.voids], context.path, context.unstaged),
            f"find the tasks that can be graded: {context.validate}",
        ],
        go_on=[f"after the fix: {context.again}", f"without a fix: {context.keep_going}"],
        stopped=stopped,
    )


def remedies(reasons: Sequence[str], path: str, unstaged: Sequence[str] = ()) -> list[str]:
    """Remedies for trials of the tasks at `path` that are void for these reasons.

    `unstaged`: fetches of such a task that may explain missing files.
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
        found.append(f"see where the missing part should come from: plimsoll lint {path}")
    return found


def _fetched(reason: str) -> str | None:
    """The name of the failed fetch in a reason; empty if not named, None without a fetch."""
    for pattern in _FETCHES:
        if match := pattern.search(reason):
            return match[1]
    return "" if _NAMELESS.search(reason) else None
