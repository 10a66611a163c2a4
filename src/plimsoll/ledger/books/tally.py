"""Tally: running totals of the books."""

from typing import TypeVar

import msgspec

from plimsoll.core.versions import Version
from plimsoll.ledger.books.group import Group, Member, MemberState
from plimsoll.trials.verdicts import Cause

__all__ = ["Tally", "count"]


_Key = TypeVar("_Key")


def count(counts: dict[_Key, int], key: _Key) -> None:
    """Increment a count."""
    counts[key] = counts.get(key, 0) + 1


class Tally(msgspec.Struct, kw_only=True):
    """Totals, derived from events. Bounded: only numbers grow."""

    admitted: int = 0
    consumed: int = 0
    voided: int = 0
    requeued: int = 0
    quarantined: int = 0
    evaluated: int = 0
    graded: int = 0
    withheld: int = 0
    dead_lineage: int = 0
    """Rollouts and groups given up because discarded weights generated them."""
    groups_by_cause: dict[Cause, int] = {}
    tickets_by_cause: dict[Cause, int] = {}
    ignored: dict[str, int] = {}
    """Events that did not fit, by kind."""
    head_ages: dict[int, int] = {}
    """Trained rollouts by the age of their head."""
    token_ages: dict[int, int] = {}
    """Trained rollouts by the age of their oldest token."""
    trained: int = 0
    trained_seconds: float = 0.0
    offered: int = 0
    offered_seconds: float = 0.0

    def offer(self, seconds: float) -> None:
        """Count a training rollout that ended."""
        self.offered += 1
        self.offered_seconds += seconds

    def train(self, group: Group, version: Version) -> None:
        """Count a group trained on at a version."""
        for member in _trained(group):
            head = member.head or group.admitted
            count(self.head_ages, version.number - head.number)
            count(self.token_ages, version.number - (member.oldest or head).number)
            self.trained += 1
            self.trained_seconds += member.seconds
        self.consumed += 1

    def untrain(self, group: Group) -> None:
        """Undo the counts of a group whose step is rolled back. Ages stay: they were real."""
        for member in _trained(group):
            self.trained -= 1
            self.trained_seconds -= member.seconds
        self.consumed -= 1

    def in_order(self) -> "Tally":
        """A copy with sorted counts, so that equal tallies serialize alike."""
        return msgspec.structs.replace(
            self,
            groups_by_cause=dict(sorted(self.groups_by_cause.items())),
            tickets_by_cause=dict(sorted(self.tickets_by_cause.items())),
            ignored=dict(sorted(self.ignored.items())),
            head_ages=dict(sorted(self.head_ages.items())),
            token_ages=dict(sorted(self.token_ages.items())),
        )

    @property
    def duration_bias(self) -> float | None:
        """Mean duration of trained rollouts over that of all ended ones; None before any."""
        if not (self.trained and self.offered_seconds):
            return None
        offered = self.offered_seconds / self.offered
        return (self.trained_seconds / self.trained) / offered


def _trained(group: Group) -> list[Member]:
    return [m for m in group.members if m.state is MemberState.GRADED and not m.withheld]
