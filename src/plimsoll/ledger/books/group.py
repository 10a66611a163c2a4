"""A group: the rollouts of one prompt, which are graded against each other."""

import re
from enum import StrEnum

import msgspec

from plimsoll.core.versions import Version
from plimsoll.trials.verdicts import Cause

__all__ = ["Group", "Member", "MemberState", "Pending", "split_ticket", "ticket_name"]


class MemberState(StrEnum):
    """Where one place in a group stands."""

    WAITING = "waiting"
    RUNNING = "running"
    GRADED = "graded"
    VOID = "void"


_WAITING, _RUNNING, _GRADED = MemberState.WAITING, MemberState.RUNNING, MemberState.GRADED


def ticket_name(group: str, place: int, attempt: int) -> str:
    """A ticket's name says which try it is of which place in which group."""
    return f"{group}/{place}.{attempt}"


# Numbers only as we write them: `03` and digits of other scripts would be second names.
_TICKET = re.compile(r"(.+)/(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})", re.DOTALL)


def split_ticket(ticket: str) -> tuple[str, int, int] | None:
    """A ticket's group, place and try; None where it is no ticket's name."""
    match = _TICKET.fullmatch(ticket)
    if match is None:
        return None
    group, place, attempt = match.groups()
    return group, int(place), int(attempt)


class Member(msgspec.Struct, kw_only=True):
    """One place in a group, with the state of its present ticket."""

    attempt: int = 0
    state: MemberState = MemberState.WAITING
    head: Version | None = None
    """The oldest version that a token of it which is trained on may have; None before it has
    started."""
    oldest: Version | None = None
    """The oldest version that really generated such a token, once that is known."""
    newest: Version | None = None
    """The newest version that generated a token of it."""
    reward: float | None = None
    trial: str = ""
    """The id of the trial that was graded."""
    seconds: float = 0.0
    withheld: bool = False
    resumed: bool = False
    """It went on with newer weights: what it said before those is not trained on."""
    resumes: int = 0
    """How often it did."""
    worker: str = ""
    since: float = 0.0
    """When its worker took it, by the caller's clock: for figures, no rule reads it."""
    voids: dict[Cause, int] = {}
    """Void tickets that count towards the limits of tries, by cause. Replaced, never changed."""
    resampled: int = 0
    """Earlier tries whose seeds the present one does not use again."""

    @property
    def final(self) -> bool:
        return self.state is MemberState.GRADED or self.state is MemberState.VOID


class Group(msgspec.Struct, kw_only=True):
    """The state of a group that is alive, or was when it was written down."""

    id: str
    prompt: int
    task: str
    admitted: Version
    """The version that members which have not started count from."""
    members: list[Member]
    attempt: int = 0
    requeues: int = 0
    """How often its prompt has come again for a reason that counts."""
    resampled: int = 0
    """How often its prompt has come again to be sampled with other seeds."""
    training: bool = False

    def copy(self) -> "Group":
        """One that can change without this one."""
        members = [msgspec.structs.replace(member) for member in self.members]
        return msgspec.structs.replace(self, members=members)

    def ticket(self, place: int) -> str:
        return ticket_name(self.id, place, self.members[place].attempt)

    def seed_name(self, place: int) -> str:
        """The name that the seeds of a place's present try are made of.

        Every try has its own, except one after a stop or restart of the run and one after a try
        that was lost before the policy said anything: there it is the same. So a run that was
        killed can be compared with an undisturbed one.
        """
        name = f"{self.task} {self.prompt}/{place}"
        tries = self.resampled, self.members[place].resampled
        return f"{name} {tries[0]}.{tries[1]}" if any(tries) else name

    @property
    def tickets(self) -> list[str]:
        return [self.ticket(place) for place in range(len(self.members))]

    # Written out: these are asked for at every event.

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
        """Whether a member of it has not been taken by a worker."""
        return any(member.state is _WAITING for member in self.members)

    @property
    def head(self) -> Version:
        """The version that its age is counted from: that of its oldest member to be trained.

        Who has not started will start with newer weights than whoever has.
        """
        oldest: Version | None = None
        for member in self.members:
            head = member.head
            if head is not None and not member.withheld and (oldest is None or head < oldest):
                oldest = head
        return self.admitted if oldest is None else oldest

    @property
    def versions(self) -> list[Version]:
        """Those that have a part in it, or are about to."""
        known = [v for m in self.members for v in (m.head, m.oldest, m.newest) if v is not None]
        return known if self.final else [*known, self.admitted]

    @property
    def trainable(self) -> bool:
        """Whether training on it would use a token of any member."""
        return any(m.state is MemberState.GRADED and not m.withheld for m in self.members)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that comes again: its group was void."""

    prompt: int
    task: str
    attempt: int
    requeues: int
    resampled: int = 0
    """How often it has come again to be sampled with other seeds, this time included."""
    after: int = 0
    """Prompts below this number go before it: its task is to blame, and the others are not to
    wait for it."""
