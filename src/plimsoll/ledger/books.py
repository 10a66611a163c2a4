"""The books: every figure of a run, derived from its events and from nothing else.

There is no counter to restore. Two processes that have read the same events have the same
books, and a recovered run has exactly the books it had.

Invariants, proven by `check` and by the simulator for tens of thousands of seeds:

* Conservation: `admitted = running + buffered + training + consumed + voided`, in groups.
* No prompt is lost: each one that was ever admitted is live, comes again, was consumed in the
  surviving lineage, or belongs to a task in quarantine.
* An event that does not fit (a completion for an unknown or finished ticket) changes nothing.
* Memory is bounded by what is live: a group that is consumed or void leaves the books.
"""

import copy
from collections.abc import Iterator

import msgspec

from plimsoll.ledger.events import (
    Admitted,
    Committed,
    Configured,
    Consumed,
    Event,
    Finished,
    GroupVoided,
    Ignored,
    Resumed,
    RolledBack,
    Skipped,
    Started,
    Voided,
    Withheld,
)
from plimsoll.ledger.group import Group, Member, MemberState, split_ticket
from plimsoll.ledger.queue import ReadyQueue
from plimsoll.ledger.settings import Settings
from plimsoll.ledger.tally import Tally, count
from plimsoll.ledger.versions import FIRST, Lineages, Version
from plimsoll.trials.verdicts import Cause

__all__ = ["Books", "Pending"]


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that comes again: its group was void."""

    prompt: int
    task: str
    attempt: int
    requeues: int


class Books:
    """Apply events in order; read everything else. A pure function of the events."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.version: Version = FIRST
        self.lineages = Lineages()
        self.groups: dict[str, Group] = {}
        """Training groups that are running, buffered or in the batch being trained."""
        self.evals: dict[str, Group] = {}
        self.pending: dict[int, Pending] = {}
        self.quarantined: dict[str, str] = {}
        """Tasks that are out, with the reason."""
        self.next_prompt = 0
        self.tally = Tally()
        self.configured = 0
        self.rollbacks = 0
        self.queue = ReadyQueue()
        self._open_train = 0
        self._open_eval = 0

    @property
    def running(self) -> int:
        """Rollouts in flight, of training and of evaluations: admitted, and not final."""
        return self._open_train + self._open_eval

    @property
    def live(self) -> int:
        """Groups that are running, buffered or being trained on."""
        return len(self.groups)

    @property
    def buffered(self) -> int:
        return self.queue.ready

    @property
    def training(self) -> list[Group]:
        return [group for group in self.groups.values() if group.training]

    def requeued(self) -> Iterator[Pending]:
        """Prompts that come again, the oldest first."""
        return (self.pending[prompt] for prompt in sorted(self.pending))

    def find(self, ticket: str) -> tuple[Group, Member] | None:
        """The group and the place of a ticket, while it is the place's present one."""
        parts = split_ticket(ticket)
        if parts is None:
            return None
        name, place, attempt = parts
        group = self.groups.get(name) or self.evals.get(name)
        if group is None or place >= len(group.members):
            return None
        member = group.members[place]
        return (group, member) if member.attempt == attempt else None

    def fits(self, event: Event) -> bool:
        """Whether an event can follow what is known."""
        match event:
            case Admitted():
                new = event.group not in self.groups and event.group not in self.evals
                return new and (event.purpose == "eval" or self._is_next(event.prompt))
            case Skipped():
                return self._is_next(event.prompt)
            case Started() | Resumed() | Finished() | Voided():
                found = self.find(event.ticket)
                return found is not None and not found[1].final
            case Withheld() | GroupVoided():
                group = self.groups.get(event.group)
                return group is not None and not group.training
            case Consumed():
                return event.version == self.version and self._may_consume(event.groups)
            case Committed():
                number = self.version.number + 1
                return event.version == Version(self.version.lineage, number)
            case Configured() | RolledBack() | Ignored():
                return True

    def _is_next(self, prompt: int) -> bool:
        return prompt == self.next_prompt or prompt in self.pending

    def _may_consume(self, names: tuple[str, ...]) -> bool:
        """Whether these are groups that are ready, each once, and none of them too old."""
        if not names or len(set(names)) != len(names) or self.training:
            return False
        oldest = self.version.number - self._rules.max_staleness
        found = [self.groups.get(name) for name in names]
        return all(g is not None and g.final and g.head.number >= oldest for g in found)

    def apply(self, event: Event) -> bool:
        """Take an event into the books; one that does not fit changes nothing."""
        if not self.fits(event):
            return False
        match event:
            case Configured():
                self.settings = event.settings
                self.configured += 1
            case Admitted():
                self._admitted(event)
            case Skipped():
                self._skipped(event)
            case Started():
                self._started(event)
            case Resumed():
                self._resumed(event)
            case Finished():
                self._finished(event)
            case Voided():
                group, member = self._at(event.ticket)
                self._end(group, member, event.cause, event.seconds, retry=event.retry)
            case Withheld():
                self._withheld(event)
            case GroupVoided():
                group = self.groups[event.group]
                self._give_up(group, event.cause, event.reason, counts=event.counts)
            case Consumed():
                self._consumed(event)
            case Committed():
                self._committed(event)
            case RolledBack():
                self._rolled_back(event)
            case Ignored():
                count(self.tally.ignored, event.what)
        return True

    def _at(self, ticket: str) -> tuple[Group, Member]:
        found = self.find(ticket)
        assert found is not None  # it fits
        return found

    def _admitted(self, event: Admitted) -> None:
        group = Group(
            id=event.group,
            prompt=event.prompt,
            task=event.task,
            admitted=event.head,
            members=[Member() for _ in range(event.size)],
            attempt=event.attempt,
            requeues=event.requeues,
        )
        if event.purpose == "eval":
            self.enter_evaluation(group)
            return
        self.pending.pop(event.prompt, None)
        self.next_prompt = max(self.next_prompt, event.prompt + 1)
        self.tally.admitted += 1
        self.enter(group)

    def _skipped(self, event: Skipped) -> None:
        self.pending.pop(event.prompt, None)
        self.next_prompt = max(self.next_prompt, event.prompt + 1)
        self.tally.quarantined += 1

    def enter_evaluation(self, group: Group) -> None:
        """Take in an evaluation's group as it is."""
        self.evals[group.id] = group
        self._open_eval += group.open

    def enter(self, group: Group) -> None:
        """Take in a live group as it is."""
        self.groups[group.id] = group
        self._open_train += group.open
        self.queue.add(group)

    def _leave(self, group: Group) -> None:
        del self.groups[group.id]
        self._open_train -= group.open
        self.queue.remove(group)

    def _started(self, event: Started) -> None:
        group, member = self._at(event.ticket)
        with self.queue.changing(group):
            if member.head is None:
                member.head = event.version
            member.state = MemberState.RUNNING
            member.worker = event.worker

    def _resumed(self, event: Resumed) -> None:
        group, member = self._at(event.ticket)
        with self.queue.changing(group):
            member.head = event.version
            member.resumed = True

    def _finished(self, event: Finished) -> None:
        group, member = self._at(event.ticket)
        versions = [segment.version for segment in event.segments]
        if not all(self.lineages.descends(self.version, version) for version in versions):
            # Some of it was generated by weights that this lineage does not descend from.
            self.tally.dead_lineage += 1
            self._end(group, member, Cause.STALE, event.seconds, retry=True)
            return
        with self.queue.changing(group):
            oldest = min(versions, default=member.head or group.admitted)
            if not member.resumed:
                # The tokens themselves know best; whatever was said at the start.
                member.head = min(member.head or oldest, oldest)
            member.oldest = max(oldest, member.head or oldest)
            member.state = MemberState.GRADED
            member.reward = event.reward
            member.seconds = event.seconds
            self._closed_one(group)
        if group.id in self.groups:
            self.tally.graded += 1
            self.tally.offer(event.seconds)
        self._settle(group)

    def _end(
        self, group: Group, member: Member, cause: Cause, seconds: float, *, retry: bool
    ) -> None:
        """A ticket came to nothing: its place gets the next one, or is void."""
        count(self.tally.tickets_by_cause, cause)
        if group.id in self.groups and seconds:
            self.tally.offer(seconds)
        member.voids = {**member.voids, cause: member.voids.get(cause, 0) + 1}
        with self.queue.changing(group):
            member.head = member.oldest = None
            member.resumed = False
            member.worker = ""
            if retry:
                member.attempt += 1
                member.state = MemberState.WAITING
            else:
                member.state = MemberState.VOID
                self._closed_one(group)
        self._settle(group, cause)

    def _closed_one(self, group: Group) -> None:
        if group.id in self.evals:
            self._open_eval -= 1
        else:
            self._open_train -= 1

    def _settle(self, group: Group, cause: Cause | None = None) -> None:
        """What follows when a member has come to its end."""
        if group.id in self.evals:
            if group.final:
                del self.evals[group.id]
                self.tally.evaluated += 1
            return
        settings = self._rules
        void = len(group.members) - group.graded - group.open
        if void and settings.group_policy != "min_graded":
            self._give_up(group, cause or Cause.BUG, "a member is void", counts=True)
        elif group.final and not self._enough(group, settings):
            self._give_up(group, cause or Cause.BUG, "too few members are graded", counts=True)

    @staticmethod
    def _enough(group: Group, settings: Settings) -> bool:
        wanted = len(group.members)
        if settings.group_policy == "min_graded":
            wanted = min(wanted, settings.min_graded)
        return group.graded >= wanted and group.trainable

    def _withheld(self, event: Withheld) -> None:
        group = self.groups[event.group]
        with self.queue.changing(group):
            for place, member in enumerate(group.members):
                if group.ticket(place) in event.tickets:
                    member.withheld = True
            # Who has not started yet starts with the weights of now.
            group.admitted = event.version
        self.tally.withheld += len(event.tickets)
        if group.final and not group.trainable:
            self._give_up(group, Cause.STALE, "no member is young enough", counts=True)

    def _give_up(self, group: Group, cause: Cause, reason: str, *, counts: bool) -> None:
        """Void a group: its credit comes back, and its prompt with priority, or never."""
        self._leave(group)
        self.tally.voided += 1
        count(self.tally.groups_by_cause, cause)
        requeues = group.requeues + counts
        if requeues > self._rules.requeues:
            self.tally.quarantined += 1
            self.quarantined.setdefault(
                group.task,
                f"void {requeues} times; last: {cause}" + (f", {reason}" if reason else ""),
            )
            return
        self.tally.requeued += 1
        self.pending[group.prompt] = Pending(
            prompt=group.prompt, task=group.task, attempt=group.attempt + 1, requeues=requeues
        )

    def _consumed(self, event: Consumed) -> None:
        for name in event.groups:
            group = self.groups[name]
            with self.queue.changing(group):
                group.training = True

    def _committed(self, event: Committed) -> None:
        for group in self.training:
            self.tally.train(group, self.version)
            self._leave(group)
        self.version = event.version

    def _rolled_back(self, event: RolledBack) -> None:
        if event.version.lineage != self.version.lineage:
            self.lineages.branch(event.version.lineage, event.parent)
        self.rollbacks += 1
        self.version = event.version
        for group in self.training:
            with self.queue.changing(group):
                group.training = False
        for group in event.restored:
            if group.id not in self.groups:
                self.tally.untrain(group)
                self.enter(copy.deepcopy(group))  # the event stays as it is
        for group in list(self.groups.values()):
            if self._is_dead(group):
                self.tally.dead_lineage += 1
                self._give_up(group, Cause.STALE, "of a lineage that was left", counts=False)

    def _is_dead(self, group: Group) -> bool:
        versions = [group.admitted]
        for member in group.members:
            versions += [v for v in (member.head, member.oldest) if v is not None]
        return not all(self.lineages.descends(self.version, version) for version in versions)

    def check(self) -> list[str]:
        """What does not add up; empty where all does."""
        tally, groups = self.tally, self.groups.values()
        training = sum(group.training for group in groups)
        running = sum(not group.final for group in groups)
        buffered = self.live - training - running
        wrong: list[str] = []
        accounted = running + buffered + training + tally.consumed + tally.voided
        if tally.admitted != accounted:
            wrong.append(f"{tally.admitted} groups were admitted, {accounted} are accounted for")
        prompts = self.live + len(self.pending) + tally.consumed + tally.quarantined
        if self.next_prompt != prompts:
            wrong.append(f"{self.next_prompt} prompts were begun, {prompts} are accounted for")
        if buffered != self.queue.ready:
            wrong.append(f"{buffered} groups are ready, the queue has {self.queue.ready}")
        opened = sum(g.open for g in groups) + sum(g.open for g in self.evals.values())
        if self.running != opened:
            wrong.append(f"{opened} rollouts are in flight, {self.running} are counted")
        return wrong

    @property
    def _rules(self) -> Settings:
        if self.settings is None:
            raise ValueError("the journal begins with its settings")
        return self.settings
