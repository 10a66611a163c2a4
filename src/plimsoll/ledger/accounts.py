"""The decisions: every change to the books of a run, as events that a sink keeps.

Synchronous and without a clock or a file of its own, so that the simulator drives the very
code that runs in training. Where `sink` raises, nothing has happened.
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
from plimsoll.ledger.rules.batching import (
    Batch,
    Waiting,
    choose,
    surplus,
)
from plimsoll.ledger.rules.retries import retries
from plimsoll.ledger.rules.stragglers import Remedy, remedy_for, too_old
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause, Graded, Void

__all__ = ["Accounts"]

Sink = Callable[[ev.Event], None]
_log = logging.getLogger(__name__)


class Accounts:
    """The books of one run, and what may be done to them."""

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
        """Use these settings from here on. What they leave no time for comes again."""
        if settings != self.books.settings:
            self._record(
                ev.Configured(number=self.books.configured, settings=settings, at=self._clock())
            )
            self.shed()

    def admit(self, order: DataOrder, most: int | None = None) -> list[Group]:
        """Admit as many groups as there is room for, and no more than `most`.

        Prompts that come again go first, unless their task is to blame for it.
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
        """Those of the tasks that were out by no fault of their own, and are in again."""
        returned = [task for task in self.books.stranded if task in tasks]
        for task in returned:
            self._record(ev.Returned(task=task, number=self.books.returned, at=self._clock()))
        return returned

    def evaluation_name(self, wanted: str, taken: Collection[str] = ()) -> str:
        """This name, with a number behind it where an evaluation had it before."""
        name = wanted
        for number in itertools.count(2):
            if name not in taken and not self._history.about(_evaluation_group(name, 0)):
                break
            name = f"{wanted}.{number}"
        return name

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

        The first `begun` tasks were admitted before. Raises for a name that is another's.
        """
        admitted: list[Group] = []
        free = room_for_evaluation(
            self.books, self.settings, size, training_is_over=training_is_over
        )
        for number, task in itertools.islice(enumerate(tasks), begun, begun + free):
            group = _evaluation_group(name, number)
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
        """Nobody waits for an evaluation any more: what is left of it does not run."""
        for group in list(self.books.evals.values()):
            if group.id == _evaluation_group(name, group.prompt):
                reason = "nobody waits for it any more"
                self._give_up(group.id, reason, counts=False, cause=Cause.CANCELLED)

    def waiting(self, most: int | None = None) -> list[str]:
        """Tickets that no worker has taken yet: of evaluations, then the oldest group's first.

        `most` is how many are wanted: no more are looked at.
        """
        tickets = (
            group.ticket(place)
            for group in self.books.unstarted
            for place, member in enumerate(group.members)
            if member.state is MemberState.WAITING
        )
        return list(itertools.islice(tickets, most))

    def start(self, ticket: str, worker: str) -> bool:
        """A worker has taken a ticket. True again where it says so again."""
        found = self.books.find(ticket)
        if found and found[1].state is MemberState.RUNNING and found[1].worker == worker:
            return True
        event = ev.Started(
            ticket=ticket, version=self.books.version, worker=worker, at=self._clock()
        )
        return self._tell(event, ticket)

    def finish(
        self,
        ticket: str,
        verdict: Graded,
        seconds: float,
        segments: Iterable[ev.Segment] = (),
        trial: str = "",
    ) -> bool:
        """A rollout was graded. False for a ticket that is not in flight: nothing changes."""
        event = ev.Finished(
            ticket=ticket,
            reward=verdict.reward,
            ending=verdict.ending,
            seconds=seconds,
            segments=tuple(segments),
            trial=trial,
            at=self._clock(),
        )
        strange = {one.version for one in event.segments if is_beyond(self.books, one.version)}
        if not self._tell(event, ticket):
            return False
        for version in strange:
            _log.warning("%s is void: it has tokens of version %s, never heard of", ticket, version)
        self._withhold_overdue(ticket)
        return True

    def _withhold_overdue(self, ticket: str) -> None:
        """A rollout that turns out to be of older weights than was said is not trained on."""
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
        spoke: bool = True,
    ) -> bool:
        """A rollout came to nothing; the table of causes says whether it is tried again.

        `again` says so whatever the table does, and the try does not count: the run itself gave
        it up, to go on later. `spoke`: the policy had answered it. Another try is sampled with
        other seeds, except after `again` and where this one was lost before it spoke.
        """
        event = ev.Voided(
            ticket=ticket,
            cause=verdict.cause,
            reason=verdict.reason,
            seconds=seconds,
            retry=again or retries(self.books, self.settings, ticket, verdict.cause),
            counts=not again,
            anew=not again and (spoke or verdict.cause is not Cause.LOST),
            at=self._clock(),
        )
        return self._tell(event, ticket)

    def choose(self) -> Batch | Waiting:
        """The next batch, or what it waits for. Changes nothing."""
        return choose(self.books, self.settings)

    def shed(self) -> list[str]:
        """Give up what can no longer be trained on in time; their prompts come again."""
        given_up = surplus(self.books, self.settings)
        for group in given_up:
            self._give_up(group, "it can no longer be trained on in time", counts=False)
        return given_up

    def distrust(self, tickets: Iterable[str], verdict: Void) -> list[str]:
        """Give up live groups of which a rollout turns out to be worth nothing, however graded.

        Their prompts come again. What is being trained on, or was, stays as it is.
        """
        found = (self.books.find(ticket) for ticket in tickets)
        groups = {one[0].id: one[0] for one in found if one is not None}
        live = self.books.groups.keys()
        given_up = [name for name, group in groups.items() if name in live and not group.training]
        for name in given_up:
            self._give_up(name, verdict.reason, counts=False, cause=verdict.cause)
        return given_up

    def attend(self, group: str, *, slack_left: bool, can_resume: bool) -> Remedy | None:
        """Do the first thing that helps about a group that is due and still runs.

        None where it is not, or no more.
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
        """Open members go on with the weights of now; those that have ended are withheld."""
        version, now = self.books.version, self._clock()
        for place, member in enumerate(group.members):
            if member.state is MemberState.RUNNING:
                self._record(ev.Resumed(ticket=group.ticket(place), version=version, at=now))
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
        """The batch is being trained on, from here on."""
        event = ev.Consumed(
            version=self.books.version,
            groups=batch.ids,
            rollbacks=self.books.rollbacks,
            at=self._clock(),
        )
        if not self._record(event):
            raise LedgerError(f"the batch of version {self.books.version} is not to be had")

    def reject(self, reasons: Mapping[str, str]) -> None:
        """The batch under way cannot be trained on, and nothing was made of it.

        The groups of it that are named are given up, for these reasons, and their prompts come
        again; the others wait for the next batch. Not for a step whose weights were published:
        tokens may be of its version already.
        """
        books = self.books
        if not reasons or not reasons.keys() <= {group.id for group in books.training}:
            raise LedgerError(f"no batch under way has the groups {', '.join(sorted(reasons))}")
        self._roll_back(books.version, books.version)
        for group, reason in reasons.items():
            self._give_up(group, reason, counts=True, cause=Cause.LOST)

    def commit(self, checkpoint: str = "") -> Version:
        """The step is done; the version that it made."""
        version = Version(self.books.version.lineage, self.books.version.number + 1)
        if not self.books.is_training:
            raise LedgerError(f"there is no step to commit as version {version}")
        self._record(ev.Committed(version=version, checkpoint=checkpoint, at=self._clock()))
        self.shed()
        return version

    def recover(self, at: Version, is_alive: Callable[[str, str], bool]) -> Version:
        """Go on from a version whose weights are at hand, after whatever happened.

        What later steps consumed is live again. A ticket that runs stays with its worker where
        `is_alive(ticket, worker)`; otherwise it is lost, and tried again. Whoever waited for an
        evaluation is gone.
        """
        for group in list(self.books.evals):
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
                "descend from it: they are not of the same run, or the run has left that version"
            )
        if is_ahead(books, at):
            # The checkpoint was complete; only its line in the journal was missing.
            self._record(ev.Committed(version=at, checkpoint="", at=self._clock()))
            return
        if at == now and not books.is_training:
            return
        groups = consumed_since(self._history, books.lineages, now, at)
        # A lineage of its own even where only an unfinished step is undone: its weights may have
        # generated tokens already.
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
            (group.ticket(place), member.worker)
            for group in self.books.groups.values()
            for place, member in enumerate(group.members)
            if member.state is MemberState.RUNNING
        ]

    def _tell(self, event: ev.Event, about: str) -> bool:
        """Record what somebody else says has happened; count it where it does not fit."""
        if self._record(event):
            return True
        number = sum(self.books.tally.ignored.values())
        what = type(event).__name__
        _log.info("%s of %s does not fit what is known of it; nothing is changed", what, about)
        self._record(ev.Ignored(number=number, what=what, about=about, at=self._clock()))
        return False

    def _record(self, event: ev.Event) -> bool:
        if not fits(self.books, event):
            return False
        self._sink(event)
        self.books.apply(event)
        return True


def _evaluation_group(name: str, number: int) -> str:
    return f"eval-{name}-{number}"
