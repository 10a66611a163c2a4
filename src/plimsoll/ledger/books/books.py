"""The books: every figure of a run, derived from its events and from nothing else.

There is no counter to restore. Two processes that have read the same events have the same
books, and a recovered run has exactly the books that it had.

Invariants, checked by `audit` and by the simulator for tens of thousands of seeds:

* Conservation: `admitted = running + buffered + training + consumed + voided`, in groups.
* No prompt is lost: each begun prompt is live, requeued, consumed in the surviving lineage, belongs
  to an excluded task, or had its turn while its task was excluded.
* An event that does not fit (a completion for an unknown or finished ticket) changes nothing.
* Memory is bounded by the live groups: a consumed or void group leaves the books.
"""

from collections.abc import Callable, Mapping

import msgspec

from plimsoll.core.versions import FIRST_VERSION, Lineages, Version
from plimsoll.ledger.books.group import Group, Member, MemberState, Pending, split_ticket
from plimsoll.ledger.books.preconditions import TicketEvent, fits, fits_member
from plimsoll.ledger.books.queues import ReadyQueue, RequeueQueue, UnstartedQueue, requeued_prompt
from plimsoll.ledger.books.tally import Tally, count
from plimsoll.ledger.data_order import Epoch
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
    Returned,
    RolledBack,
    Skipped,
    Started,
    Voided,
    Withheld,
)
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import CAUSES, Cause

__all__ = ["Books"]


class Books:
    """The state of a run: apply events in order, read everything else. A pure function of
    events."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.version: Version = FIRST_VERSION
        self.lineages = Lineages()
        self.groups: dict[str, Group] = {}
        """Training groups that are running, buffered or in the batch being trained."""
        self.evals: dict[str, Group] = {}
        self.pending: dict[int, Pending] = {}
        self.quarantined: dict[str, str] = {}
        """Excluded tasks, with the reason."""
        self.stranded: dict[str, list[Pending]] = {}
        """Excluded tasks that are not to blame, each with the prompts to requeue when it is
        readmitted."""
        self.next_prompt = 0
        self.epoch = Epoch()
        self.tally = Tally()
        self.configured = 0
        self.returned = 0
        self.rollbacks = 0
        self.queue = ReadyQueue()
        self.unstarted = UnstartedQueue()
        """Groups, evaluations included, with members that no worker has taken."""
        self.on_over: Callable[[Group], None] | None = None
        """Callback, not part of the books: called with every group whose members are all final,
        and again when it leaves the books."""
        self._training: dict[str, Group] = {}
        self._again = RequeueQueue()
        self._open_train = 0
        self._open_eval = 0

    @property
    def running(self) -> int:
        """Rollouts in flight, of training and of evaluations: admitted and not final."""
        return self._open_train + self._open_eval

    @property
    def unstarted_training(self) -> int:
        """Training rollouts that no worker has taken."""
        groups = (group for group in self.unstarted if group.id in self.groups)
        return sum(member.state is MemberState.WAITING for one in groups for member in one.members)

    @property
    def live(self) -> int:
        """Groups that are running, buffered or being trained on."""
        return len(self.groups)

    @property
    def buffered(self) -> int:
        return self.queue.ready

    @property
    def is_training(self) -> bool:
        return bool(self._training)

    @property
    def training(self) -> list[Group]:
        """The batch being trained, ordered by prompt."""
        return sorted(self._training.values(), key=lambda group: (group.prompt, group.id))

    def next_pending(self) -> Pending | None:
        """The oldest requeued prompt; prompts whose task is to blame come last."""
        return self._again.first(self.pending)

    def find(self, ticket: str) -> tuple[Group, Member] | None:
        """The group and the member of a ticket, if it is the member's current ticket."""
        parts = split_ticket(ticket)
        if parts is None:
            return None
        name, index, attempt = parts
        group = self.groups.get(name) or self.evals.get(name)
        if group is None or index >= len(group.members):
            return None
        member = group.members[index]
        return (group, member) if member.attempt == attempt else None

    def apply(self, event: Event) -> bool:
        """Apply an event; one that does not fit changes nothing."""
        match event:
            case Started() | Resumed() | Finished() | Voided():
                return self._apply_to_ticket(event)
            case _ if not fits(self, event):
                return False
            case Admitted():
                self._admitted(event)
            case Skipped():
                self._skipped(event)
            case Returned():
                self._returned(event)
            case Withheld():
                self._withheld(event)
            case GroupVoided():
                self._group_voided(event)
            case Consumed():
                self._consumed(event)
            case Committed():
                self._committed(event)
            case RolledBack():
                self._rolled_back(event)
            case Configured():
                self.settings = event.settings
                self.configured += 1
            case Ignored():
                count(self.tally.ignored, event.what)
        return True

    def _apply_to_ticket(self, event: TicketEvent) -> bool:
        found = self.find(event.ticket)
        if found is None or not fits_member(event, found[1]):
            return False
        group, member = found
        match event:
            case Started():
                self._started(event, group, member)
            case Finished():
                self._finished(event, group, member)
            case Voided():
                self._voided(event, group, member)
            case Resumed():
                member.head = event.version
                member.resumed = True
                member.resumes += 1
                self._update(group)
        return True

    def _admitted(self, event: Admitted) -> None:
        group = Group(
            id=event.group,
            prompt=event.prompt,
            task=event.task,
            admitted=event.head,
            members=[Member() for _ in range(event.size)],
            attempt=event.attempt,
            requeues=event.requeues,
            resampled=event.resampled,
        )
        if event.purpose == "eval":
            self.enter_evaluation(group)
            return
        self._count_turn(event.prompt, event.task)
        self.tally.admitted += 1
        self.enter(group)

    def _skipped(self, event: Skipped) -> None:
        pending = self.pending.get(event.prompt)
        self._count_turn(event.prompt, event.task)
        self.tally.quarantined += 1
        if pending is not None and event.task in self.stranded:
            # Another attempt: it may be skipped again before it is requeued.
            later = msgspec.structs.replace(pending, attempt=pending.attempt + 1)
            self.stranded[event.task].append(later)

    def _returned(self, event: Returned) -> None:
        del self.quarantined[event.task]
        self.returned += 1
        for pending in self.stranded.pop(event.task):
            self.tally.quarantined -= 1
            self.requeue(msgspec.structs.replace(pending, requeues=0))

    def _count_turn(self, prompt: int, task: str) -> None:
        """Count a new prompt as its task's turn in the epoch; a requeued prompt had its turn."""
        self.pending.pop(prompt, None)
        if prompt >= self.next_prompt:
            self.next_prompt = prompt + 1
            self.epoch.take(task)

    def enter_evaluation(self, group: Group) -> None:
        """Add a group of an evaluation."""
        self.evals[group.id] = group
        self._open_eval += group.open
        self._update(group)

    def enter(self, group: Group) -> None:
        """Add a live group."""
        self.groups[group.id] = group
        self._open_train += group.open
        if group.training:
            self._training[group.id] = group
        self.queue.add(group)
        self._update(group)

    def requeue(self, pending: Pending) -> None:
        """Requeue a prompt."""
        self.pending[pending.prompt] = pending
        self._again.add(pending)

    def _leave(self, group: Group) -> None:
        del self.groups[group.id]
        self._training.pop(group.id, None)
        self._open_train -= group.open
        self.queue.remove(group)
        self._end_group(group)

    def _leave_evaluation(self, group: Group) -> None:
        del self.evals[group.id]
        self._open_eval -= group.open
        self._end_group(group)

    def _end_group(self, group: Group) -> None:
        self.unstarted.remove(group)
        if self.on_over is not None:
            self.on_over(group)

    def _update(self, group: Group) -> None:
        """Update the position of a changed group in the queues."""
        self.queue.update(group)
        self.unstarted.update(group, trains=group.id in self.groups)

    def _started(self, event: Started, group: Group, member: Member) -> None:
        member.head = event.version
        member.state = MemberState.RUNNING
        member.worker = event.worker
        member.since = event.at
        self._update(group)

    def _finished(self, event: Finished, group: Group, member: Member) -> None:
        versions = [segment.version for segment in event.segments]
        if not all(map(self.knows, versions)):
            # Some of it was generated by weights outside this lineage.
            self.tally.dead_lineage += 1
            retry = member.voids.get(Cause.STALE, 0) < CAUSES[Cause.STALE].retries
            member.voids = _counted(member.voids, Cause.STALE)
            self._end(group, member, Cause.STALE, event.seconds, retry=retry, at=event.at)
            return
        oldest = min(versions, default=member.head or group.admitted)
        if not member.resumed:
            # The tokens are authoritative, whatever version was announced at the start.
            member.head = min(member.head or oldest, oldest)
        member.oldest = max(oldest, member.head or oldest)
        member.newest = max(versions, default=member.oldest)
        member.reward = event.reward
        member.trial = event.trial
        member.seconds = event.seconds
        self._close(group, member, MemberState.GRADED)
        if group.id in self.groups:
            self.tally.graded += 1
            self.tally.offer(event.seconds)
        self._update(group)
        self._settle(group, None, event.at)

    def _voided(self, event: Voided, group: Group, member: Member) -> None:
        if event.counts:
            member.voids = _counted(member.voids, event.cause)
        member.resampled += event.anew
        self._end(group, member, event.cause, event.seconds, retry=event.retry, at=event.at)

    def _end(
        self, group: Group, member: Member, cause: Cause, seconds: float, *, retry: bool, at: float
    ) -> None:
        """End a void ticket: its member gets the next ticket, or is void."""
        if group.id in self.groups:
            count(self.tally.tickets_by_cause, cause)
            if seconds:
                self.tally.offer(seconds)
        member.head = member.oldest = member.newest = None
        member.resumed = member.withheld = False
        member.resumes = 0
        member.worker = ""
        if retry:
            member.attempt += 1
            member.state = MemberState.WAITING
            # The worker that takes the new ticket starts with the current weights.
            group.admitted = max(group.admitted, self.version)
        else:
            self._close(group, member, MemberState.VOID)
        self._update(group)
        self._settle(group, cause, at)

    def _close(self, group: Group, member: Member, state: MemberState) -> None:
        member.state = state
        if group.id in self.evals:
            self._open_eval -= 1
        else:
            self._open_train -= 1

    def _settle(self, group: Group, cause: Cause | None, at: float) -> None:
        """Update a group whose member became final."""
        still_open = group.open
        if not still_open and self.on_over is not None:
            self.on_over(group)
        if group.id in self.evals:
            if not still_open:
                self._leave_evaluation(group)
                self.tally.evaluated += 1
            return
        settings = self.rules
        void = len(group.members) - group.graded - still_open
        why = cause or Cause.BUG
        if void and settings.group_policy != "min_graded":
            self._give_up(group, why, "a member is void", counts=True, at=at)
        elif not still_open and not _enough(group, settings):
            self._give_up(group, why, "too few members are graded", counts=True, at=at)

    def _withheld(self, event: Withheld) -> None:
        group = self.groups[event.group]
        for index, member in enumerate(group.members):
            if group.ticket(index) in event.tickets:
                member.withheld = True
        # Members that have not started will start with the current weights.
        group.admitted = max(group.admitted, event.version)
        self._update(group)
        self.tally.withheld += len(event.tickets)
        if group.final and not group.trainable:
            reason = "every member is too old"
            self._give_up(group, Cause.STALE, reason, counts=True, at=event.at)

    def _group_voided(self, event: GroupVoided) -> None:
        if (evaluated := self.evals.get(event.group)) is not None:
            self._leave_evaluation(evaluated)
            return
        group = self.groups[event.group]
        self._give_up(group, event.cause, event.reason, counts=event.counts, at=event.at)

    def _give_up(
        self,
        group: Group,
        cause: Cause,
        reason: str,
        *,
        counts: bool,
        at: float,
        anew: bool = True,
    ) -> None:
        """Void a group: return its capacity, and requeue its prompt with priority, or never."""
        for member in group.members:
            if member.state is MemberState.RUNNING:
                # Cut short: it took at least this long.
                self.tally.offer(max(0.0, at - member.since))
        self._leave(group)
        self.tally.voided += 1
        count(self.tally.groups_by_cause, cause)
        requeues = group.requeues + counts
        if counts and requeues > self.rules.requeues:
            self.tally.quarantined += 1
            why = f"void {requeues} times; last: {cause}" + (f", {reason}" if reason else "")
            later = requeued_prompt(self, group, cause, 0, counts=False, anew=anew)
            self._exclude(later, cause, why)
            return
        self.tally.requeued += 1
        self.requeue(requeued_prompt(self, group, cause, requeues, counts=counts, anew=anew))

    def _exclude(self, pending: Pending, cause: Cause, why: str) -> None:
        """Exclude the task of a prompt that failed too often; for good if the task is to blame."""
        task = pending.task
        is_new = task not in self.quarantined
        if CAUSES[cause].against_task:
            if self.stranded.pop(task, None) is not None or is_new:
                self.quarantined[task] = why
            return
        if is_new:
            self.quarantined[task] = f"{why}; its task is not to blame: resuming tries it again"
            self.stranded[task] = []
        if task in self.stranded:
            self.stranded[task].append(pending)

    def _consumed(self, event: Consumed) -> None:
        for name in event.groups:
            group = self.groups[name]
            group.training = True
            self._training[name] = group
            self.queue.update(group)

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
            group.training = False
            self.queue.update(group)
        self._training.clear()
        for group in event.restored:
            if group.id not in self.groups:
                self.tally.untrain(group)
                self.enter(group.copy())  # the event stays unchanged
        for group in list(self.groups.values()):
            if self._is_dead(group):
                self.tally.dead_lineage += 1
                reason = "of an abandoned lineage"
                # The restart is to blame: the same seeds are used again.
                self._give_up(group, Cause.STALE, reason, counts=False, at=event.at, anew=False)

    def knows(self, version: Version) -> bool:
        """Whether the current weights descend from a version, or are about to become it.

        A policy has the weights of a step before the step is committed.
        """
        if self.is_training and version == Version(self.version.lineage, self.version.number + 1):
            return True
        return self.lineages.descends(self.version, version)

    def _is_dead(self, group: Group) -> bool:
        """Whether weights outside this lineage generated part of it."""
        return not all(self.lineages.descends(self.version, one) for one in group.versions)

    @property
    def rules(self) -> Settings:
        """The settings, which every journal begins with."""
        if self.settings is None:
            raise ValueError("the journal begins with its settings")
        return self.settings


def _counted(voids: Mapping[Cause, int], cause: Cause) -> dict[Cause, int]:
    return {**voids, cause: voids.get(cause, 0) + 1}


def _enough(group: Group, settings: Settings) -> bool:
    needed = len(group.members)
    if settings.group_policy == "min_graded":
        needed = min(needed, settings.min_graded)
    return group.graded >= needed and group.trainable
