"""Group: the rollouts of one prompt, graded against each other."""

import re
from enum import StrEnum

import msgspec

from plimsoll.core.versions import Version
from plimsoll.trials.verdicts import Cause

__all__ = ["Group", "Member", "MemberState", "Pending", "split_ticket", "ticket_name"]


class MemberState(StrEnum):
    """The state of a member of a group."""

    WAITING = "waiting"
    RUNNING = "running"
    GRADED = "graded"
    VOID = "void"


_WAITING, _RUNNING, _GRADED = MemberState.WAITING, MemberState.RUNNING, MemberState.GRADED


def ticket_name(group: str, index: int, attempt: int) -> str:
    """The name of a ticket: group, member and try."""
    return f"{group}/{index}.{attempt}"


# Canonical numbers only: `03` and digits of other scripts would be second names.
_TICKET = re.compile(r"(.+)/(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})", re.DOTALL)


def split_ticket(ticket: str) -> tuple[str, int, int] | None:
    """The group, member and try of a ticket; None if it is not the name of a ticket."""
    match = _TICKET.fullmatch(ticket)
    if match is None:
        return None
    group, index, attempt = match.groups()
    return group, int(index), int(attempt)


class Member(msgspec.Struct, kw_only=True):
    """A member of a group, with the state of its current ticket."""

    attempt: int = 0
    state: MemberState = MemberState.WAITING
    head: Version | None = None
    """The oldest possible version of a trainable token; None before it has started."""
    oldest: Version | None = None
    """The oldest version that did generate such a token, once known."""
    newest: Version | None = None
    """The newest version that generated a token."""
    reward: float | None = None
    trial: str = ""
    """The id of the graded trial."""
    seconds: float = 0.0
    withheld: bool = False
    resumed: bool = False
    """It continued with newer weights: earlier tokens are not trained on."""
    resumes: int = 0
    """How often it did."""
    worker: str = ""
    since: float = 0.0
    """When its worker took it, by the caller's clock. For reports; no rule reads it."""
    voids: dict[Cause, int] = {}
    """Void tickets that count towards the retry limits, by cause. Replaced, never mutated."""
    resampled: int = 0
    """Earlier tries whose seeds the current try does not reuse."""

    @property
    def final(self) -> bool:
        return self.state is MemberState.GRADED or self.state is MemberState.VOID


class Group(msgspec.Struct, kw_only=True):
    """The state of a group."""

    id: str
    prompt: int
    task: str
    admitted: Version
    """The version that unstarted members count from."""
    members: list[Member]
    attempt: int = 0
    requeues: int = 0
    """How often its prompt was requeued for a reason that counts."""
    resampled: int = 0
    """How often its prompt was requeued to be sampled with other seeds."""
    training: bool = False

    def copy(self) -> "Group":
        """An independent copy."""
        members = [msgspec.structs.replace(member) for member in self.members]
        return msgspec.structs.replace(self, members=members)

    def ticket(self, index: int) -> str:
        return ticket_name(self.id, index, self.members[index].attempt)

    def seed_name(self, index: int) -> str:
        """The name that the seeds of a member's current try are derived from.

        Every try has its own seeds, with two exceptions: a try after a stop or restart of the run,
        and a try after one that was lost before the policy answered. So a killed run can be
        compared with an undisturbed one.
        """
        name = f"{self.task} {self.prompt}/{index}"
        tries = self.resampled, self.members[index].resampled
        return f"{name} {tries[0]}.{tries[1]}" if any(tries) else name

    @property
    def tickets(self) -> list[str]:
        return [self.ticket(index) for index in range(len(self.members))]

    # Written out: these are read at every event.

    @property
    def final(self) -> bool:
        for member in self.members:
            if member.state is _WAITING or member.state is _RUNNING:
                return False
        return True

    @property
    def open(self) -> int:
        """Members that wait or run."""
        count = 0
        for member in self.members:
            if member.state is _WAITING or member.state is _RUNNING:
                count += 1
        return count

    @property
    def graded(self) -> int:
        count = 0
        for member in self.members:
            if member.state is _GRADED:
                count += 1
        return count

    @property
    def waits(self) -> bool:
        """Whether no worker has taken one of its members."""
        return any(member.state is _WAITING for member in self.members)

    @property
    def head(self) -> Version:
        """The version that its age is counted from: that of its oldest trainable member.

        Unstarted members will start with newer weights than started ones.
        """
        oldest: Version | None = None
        for member in self.members:
            head = member.head
            if head is not None and not member.withheld and (oldest is None or head < oldest):
                oldest = head
        return self.admitted if oldest is None else oldest

    @property
    def versions(self) -> list[Version]:
        """The versions that generated tokens of it, or are about to."""
        seen = [v for m in self.members for v in (m.head, m.oldest, m.newest) if v is not None]
        return seen if self.final else [*seen, self.admitted]

    @property
    def trainable(self) -> bool:
        """Whether training on it would use a token of any member."""
        return any(m.state is MemberState.GRADED and not m.withheld for m in self.members)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A requeued prompt: its group was void."""

    prompt: int
    task: str
    attempt: int
    requeues: int
    resampled: int = 0
    """How often it was requeued to be sampled with other seeds, this time included."""
    after: int = 0
    """Prompts below this number go first: its task is to blame, and other tasks do not wait
    for it."""
