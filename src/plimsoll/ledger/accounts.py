"""Accounts: the decisions that change the books of a run, each recorded as events.

Synchronous, without a clock and without files: the simulator drives the same code as a
training run. If `sink` raises, nothing has changed.
"""

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import Version
from plimsoll.ledger import events as ev
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group, MemberState
from plimsoll.ledger.books.preconditions import fits
from plimsoll.ledger.books.queues import next_requeued
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.recovery import (
    History,
    can_restore,
    consumed_since,
    is_ahead,
    is_beyond,
    rebuild,
)
from plimsoll.ledger.rules.admission import room, room_for_evaluation
from plimsoll.ledger.rules.batching import Batch, Waiting, choose, surplus
from plimsoll.ledger.rules.retries import retries
from plimsoll.ledger.rules.stragglers import Remedy, remedy_for, too_old
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause, Graded, Void

__all__ = ["Accounts", "evaluation_group"]

Sink = Callable[[ev.Event], None]
_log = logging.getLogger(__name__)


class Accounts:
    """The books of one run, and the operations on them."""

    def __init__(
        self, books: Books, sink: Sink, history: History, clock: Callable[[], float]
    ) -> None:
        self.books = books
        self._sink = sink
        self._history = history
        self._clock = clock

    @property
    def settings(self) -> Settings:
        if self.books.settings is None:
            raise LedgerError("the ledger has no settings yet")
        return self.books.settings

    def configure(self, settings: Settings) -> None:
        """Use these settings from now on. Groups that can no longer be trained in time are
        requeued."""
        if settings != self.books.settings:
            self._record(
                ev.Configured(number=self.books.configured, settings=settings, at=self._clock())
            )
            self.shed()

    def admit(self, order: DataOrder, most: int | None = None) -> list[Group]:
        """Admit as many groups as there is room for, at most `most`.

        Requeued prompts go first, unless their task is to blame for the failure.
        """
        admitted: list[Group] = []
        free = room(self.books, self.settings)
        for _ in range(free if most is None else min(free, most)):
            event = self._next_prompt(order)
            if event is None:
                break
            self._record(event)
            admitted.append(self.books.groups[event.group])
        return admitted

    def _next_prompt(self, order: DataOrder) -> ev.Admitted | None:
        books = self.books
        while not order.is_empty_without(books.quarantined.keys()):
            again = next_requeued(books, order)
            prompt = books.next_prompt if again is None else again.prompt
            task = order.next_task(books.epoch) if again is None else again.task
            if task is None:
                return None
            attempt = 0 if again is None else again.attempt
            if task in books.quarantined:
                self._record(
                    ev.Skipped(prompt=prompt, task=task, attempt=attempt, at=self._clock())
                )
                continue
            return ev.Admitted(
                group=f"{prompt}-{attempt}",
                prompt=prompt,
                task=task,
                head=books.version,
                size=self.settings.group_size,
                attempt=attempt,
                requeues=0 if again is None else again.requeues,
                resampled=0 if again is None else again.resampled,
                at=self._clock(),
            )
        return None

    def readmit(self, tasks: Collection[str]) -> list[str]:
        """Readmit those of the tasks that are excluded but not to blame; returns their names.

        Their prompts are requeued.
        """
        returned = [task for task in self.books.stranded if task in tasks]
        for task in returned:
            self._record(ev.Returned(task=task, number=self.books.returned, at=self._clock()))
        return returned

    def evaluation_name(self, name: str, taken: Collection[str] = ()) -> str:
        """A unique name for an evaluation: `name`, with a number appended if it is taken."""
        unique = name
        for number in itertools.count(2):
            if unique not in taken and not self._history.about(evaluation_group(unique, 0)):
                break
            unique = f"{name}.{number}"
        return unique

    def admit_evaluation(
        self,
        name: str,
        tasks: Sequence[str],
        size: int,
        *,
        begun: int = 0,
        training_is_over: bool = False,
    ) -> list[Group]:
        """Admit groups of an evaluation, as far as the cap on rollouts allows.

        The first `begun` tasks are already admitted. Raises for the name of another evaluation.
        """
        admitted: list[Group] = []
        free = room_for_evaluation(
            self.books, self.settings, size, training_is_over=training_is_over
        )
        for number, task in itertools.islice(enumerate(tasks), begun, begun + free):
            group = evaluation_group(name, number)
            if self._history.about(group):
                raise LedgerError(f"an evaluation was called {name!r} before")
            self._record(
                ev.Admitted(
                    group=group,
                    prompt=number,
                    task=task,
                    head=self.books.version,
                    size=size,
                    purpose="eval",
                    at=self._clock(),
                )
            )
            admitted.append(self.books.evals[group])
        return admitted

    def give_up_evaluation(self, name: str) -> None:
        """Abandon an evaluation: its remaining tickets do not run."""
        for group in list(self.books.evals.values()):
            if group.id == evaluation_group(name, group.prompt):
                reason = "its evaluation was abandoned"
                self._give_up(group.id, reason, counts=False, cause=Cause.CANCELLED)

    def waiting(self, most: int | None = None) -> list[str]:
        """Tickets that no worker has taken: evaluations first, then the oldest groups.

        Stops after `most` tickets.
        """
        tickets = (
            group.ticket(index)
            for group in self.books.unstarted
            for index, member in enumerate(group.members)
            if member.state is MemberState.WAITING
        )
        return list(itertools.islice(tickets, most))

    def start(self, ticket: str, worker: str) -> bool:
        """Record that a worker has taken a ticket. Idempotent: true again for a repeated
        message."""
        found = self.books.find(ticket)
        if found and found[1].state is MemberState.RUNNING and found[1].worker == worker:
            return True
        event = ev.Started(
            ticket=ticket, version=self.books.version, worker=worker, at=self._clock()
        )
        return self._report(event, ticket)

    def finish(
        self,
        ticket: str,
        verdict: Graded,
        seconds: float,
        segments: Iterable[ev.Segment] = (),
        trial: str = "",
    ) -> bool:
        """Record a graded rollout. False for a ticket that is not in flight: nothing changes."""
        event = ev.Finished(
            ticket=ticket,
            reward=verdict.reward,
            ending=verdict.ending,
            seconds=seconds,
            segments=tuple(segments),
            trial=trial,
            at=self._clock(),
        )
        unknown = {one.version for one in event.segments if is_beyond(self.books, one.version)}
        if not self._report(event, ticket):
            return False
        for version in unknown:
            _log.warning("%s is void: it has tokens of the unknown version %s", ticket, version)
        self._withhold_overdue(ticket)
        return True

    def _withhold_overdue(self, ticket: str) -> None:
        """Withhold a rollout whose tokens turn out to be older than announced."""
        found = self.books.find(ticket)
        if found is None or found[0].id not in self.books.groups:
            return
        first = self.books.version.number - self.settings.max_staleness
        if found[0].head.number < first:
            self._withhold(found[0], first - 1)

    def void(
        self,
        ticket: str,
        verdict: Void,
        seconds: float = 0.0,
        *,
        again: bool = False,
        has_answered: bool = True,
    ) -> bool:
        """Record a void rollout. The table of causes says whether it is retried.

        `again` retries it regardless of the table, and the try does not count: the run itself gave
        it up, to continue later. `has_answered`: the policy had answered. A retry uses other seeds,
        except after `again` and where the rollout was lost before the policy answered.
        """
        event = ev.Voided(
            ticket=ticket,
            cause=verdict.cause,
            reason=verdict.reason,
            seconds=seconds,
            retry=again or retries(self.books, self.settings, ticket, verdict.cause),
            counts=not again,
            anew=not again and (has_answered or verdict.cause is not Cause.LOST),
            at=self._clock(),
        )
        return self._report(event, ticket)

    def choose(self) -> Batch | Waiting:
        """The next batch, or the groups that it waits for. Changes nothing."""
        return choose(self.books, self.settings)

    def shed(self) -> list[str]:
        """Give up groups that can no longer be trained in time; their prompts are requeued."""
        given_up = surplus(self.books, self.settings)
        for group in given_up:
            self._give_up(group, "it can no longer be trained on in time", counts=False)
        return given_up

    def distrust(self, tickets: Iterable[str], verdict: Void) -> list[str]:
        """Give up live groups with a rollout that turns out to be worthless, however it was graded.

        Their prompts are requeued. Groups in training, or already trained, stay.
        """
        found = (self.books.find(ticket) for ticket in tickets)
        groups = {one[0].id: one[0] for one in found if one is not None}
        live = self.books.groups.keys()
        given_up = [name for name, group in groups.items() if name in live and not group.training]
        for name in given_up:
            self._give_up(name, verdict.reason, counts=False, cause=verdict.cause)
        return given_up

    def attend(self, group: str, *, slack_left: bool, can_resume: bool) -> Remedy | None:
        """Apply the first remedy that helps a straggling group that is due.

        None if the group is not due any more.
        """
        choice = self.choose()
        if isinstance(choice, Batch) or group not in choice.due:
            return None
        late = self.books.groups[group]
        remedy = remedy_for(
            late, self.settings, choice.upto, slack_left=slack_left, can_resume=can_resume
        )
        match remedy:
            case Remedy.WAIT:
                pass
            case Remedy.RESUME:
                self._resume(late, choice.upto)
            case Remedy.WITHHOLD:
                self._withhold(late, choice.upto)
            case Remedy.REQUEUE | Remedy.QUARANTINE:
                self._give_up(group, "it took too long", counts=True)
        return remedy

    def _resume(self, group: Group, upto: int) -> None:
        """Let open members continue with the current weights; withhold those that have ended."""
        version, now = self.books.version, self._clock()
        for index, member in enumerate(group.members):
            if member.state is MemberState.RUNNING:
                self._record(ev.Resumed(ticket=group.ticket(index), version=version, at=now))
        self._withhold(group, upto)

    def _withhold(self, group: Group, upto: int) -> None:
        self._record(
            ev.Withheld(
                group=group.id,
                tickets=too_old(group, upto),
                version=self.books.version,
                at=self._clock(),
            )
        )

    def _give_up(
        self, group: str, reason: str, *, counts: bool, cause: Cause = Cause.STALE
    ) -> None:
        self._record(
            ev.GroupVoided(group=group, cause=cause, reason=reason, counts=counts, at=self._clock())
        )

    def consume(self, batch: Batch) -> None:
        """Record that training on the batch begins."""
        event = ev.Consumed(
            version=self.books.version,
            groups=batch.ids,
            rollbacks=self.books.rollbacks,
            at=self._clock(),
        )
        if not self._record(event):
            raise LedgerError(
                f"the batch of version {self.books.version} cannot be consumed: another one is in "
                "training, or one of its groups is not ready or too old"
            )

    def reject(self, reasons: Mapping[str, str]) -> None:
        """Reject the current batch: the named groups cannot be trained on.

        They are given up for the given reasons and their prompts are requeued; the other groups
        wait for the next batch. Not for a step whose weights were published: rollouts may already
        have tokens of its version.
        """
        books = self.books
        if not reasons or not reasons.keys() <= {group.id for group in books.training}:
            names = ", ".join(sorted(reasons))
            raise LedgerError(f"the current batch does not have the groups {names}")
        self._roll_back(books.version, books.version)
        for group, reason in reasons.items():
            self._give_up(group, reason, counts=True, cause=Cause.LOST)

    def commit(self, checkpoint: str = "") -> Version:
        """Commit the step; returns the new version."""
        version = Version(self.books.version.lineage, self.books.version.number + 1)
        if not self.books.is_training:
            raise LedgerError(f"there is no step to commit as version {version}")
        self._record(ev.Committed(version=version, checkpoint=checkpoint, at=self._clock()))
        self.shed()
        return version

    def recover(
        self,
        at: Version,
        is_alive: Callable[[str, str], bool],
        *,
        keep_evaluations: bool = False,
    ) -> Version:
        """Continue from a version whose weights are available, after any crash.

        Groups that later steps consumed are live again. A running ticket stays with its worker if
        `is_alive(ticket, worker)`; otherwise it is lost and retried. Evaluations end with the
        process that waited for them, unless `keep_evaluations`.
        """
        for group in [] if keep_evaluations else list(self.books.evals):
            self._give_up(group, "the run was ended", counts=False, cause=Cause.LOST)
        self._restore(at)
        for ticket, worker in self._running():
            if not is_alive(ticket, worker):
                event = ev.Voided(
                    ticket=ticket, cause=Cause.LOST, reason="its worker is gone", retry=True,
                    counts=False, at=self._clock(),
                )  # fmt: skip
                self._record(event)
        self.shed()
        return self.books.version

    def _restore(self, at: Version) -> None:
        books = self.books
        now = books.version
        if not can_restore(books, at):
            raise LedgerError(
                f"the checkpoint is of version {at}, and this ledger is at {now}, which does not "
                "descend from it: the checkpoint is of another run or of an abandoned lineage, or "
                "the ledger has lost its last events"
            )
        if is_ahead(books, at):
            # The checkpoint was complete; only its event was missing from the journal.
            self._record(ev.Committed(version=at, checkpoint="", at=self._clock()))
            return
        if at == now and not books.is_training:
            return
        groups = consumed_since(self._history, books.lineages, now, at)
        # A new lineage even if only an unfinished step is undone: its weights may already have
        # generated tokens.
        version = Version(books.lineages.next_lineage(), at.number)
        self._roll_back(at, version, [rebuild(self._history, books, name) for name in groups])

    def _roll_back(self, to: Version, version: Version, restored: Iterable[Group] = ()) -> None:
        event = ev.RolledBack(
            number=self.books.rollbacks,
            parent=to,
            version=version,
            restored=tuple(restored),
            at=self._clock(),
        )
        self._record(event)

    def _running(self) -> list[tuple[str, str]]:
        return [
            (group.ticket(index), member.worker)
            for group in (*self.books.groups.values(), *self.books.evals.values())
            for index, member in enumerate(group.members)
            if member.state is MemberState.RUNNING
        ]

    def _report(self, event: ev.Event, about: str) -> bool:
        """Record a report about a ticket or a group; count it as ignored if it does not fit."""
        if self._record(event):
            return True
        number = sum(self.books.tally.ignored.values())
        what = type(event).__name__
        _log.info("ignored: %s of %s does not fit the state of the ledger", what, about)
        self._record(ev.Ignored(number=number, what=what, about=about, at=self._clock()))
        return False

    def _record(self, event: ev.Event) -> bool:
        if not fits(self.books, event):
            return False
        self._sink(event)
        self.books.apply(event)
        return True


def evaluation_group(name: str, number: int) -> str:
    """The name of a group of an evaluation."""
    return f"eval-{name}-{number}"
