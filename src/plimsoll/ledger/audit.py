"""Audit: the guarantees of a run, checked from its events alone.

`Auditor` shares no state and no code with the books. It derives from the events which weights
generated each rollout and when it was trained on, and reports broken guarantees.
`disagreements` reports figures of the books that do not add up.
"""

from dataclasses import dataclass, field

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.events import (
    Admitted,
    Committed,
    Configured,
    Consumed,
    Event,
    Finished,
    Resumed,
    Returned,
    RolledBack,
    Skipped,
    Started,
    Voided,
    Withheld,
)
from plimsoll.ledger.settings import Settings

__all__ = ["Auditor", "disagreements"]


@dataclass(slots=True)
class _Sample:
    """The last rollout of a member of a group."""

    ticket: str
    head: Version
    segments: tuple[Version, ...] = ()
    resumed: Version | None = None
    withheld: bool = False
    graded: bool = False

    def versions(self) -> list[Version]:
        """The versions whose tokens would be trained on."""
        if self.resumed is None:
            return [*self.segments] or [self.head]
        return [max(version, self.resumed) for version in self.segments] or [self.resumed]


@dataclass(slots=True)
class _Group:
    prompt: int
    head: Version
    samples: dict[str, _Sample] = field(default_factory=dict[str, _Sample])
    """Members by the number in their ticket."""

    def sample(self, ticket: str) -> _Sample:
        """The sample of a ticket; a new one if the member had another ticket."""
        number = ticket.rpartition("/")[2].partition(".")[0]
        if number not in self.samples or self.samples[number].ticket != ticket:
            self.samples[number] = _Sample(ticket, self.head)
        return self.samples[number]


@dataclass(slots=True)
class _Step:
    """A batch that was trained on, and the version that it made."""

    made: Version
    groups: tuple[str, ...]


class Auditor:
    """Takes events in order; `broken` lists the guarantees that they break."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.batches: list[_Step] = []
        """Steps of the surviving lineage."""
        self._settings: Settings | None = None
        self._version = FIRST_VERSION
        self._ancestry: set[Version] = {FIRST_VERSION}
        """The current version and all its ancestors."""
        self._groups: dict[str, _Group] = {}
        self._training: tuple[str, ...] = ()
        self._trained: dict[int, Version] = {}
        """Each prompt that the surviving lineage was trained on, with the version that it made."""
        self._tasks: dict[int, str] = {}
        """The task of each prompt."""
        self._skipped: dict[str, set[int]] = {}
        """Prompts skipped while their task was excluded, by task."""
        self._passed: set[int] = set()
        """The same for tasks that were readmitted: their prompts are not issued a second time."""
        self._ids: set[str] = set()
        self._trials: dict[str, str] = {}
        """The ticket that each trial was graded for."""

    def take(self, event: Event) -> None:
        """Take the next event."""
        if event.id in self._ids:
            self.broken.append(f"{event.id} was written twice")
        self._ids.add(event.id)
        match event:
            case Configured():
                self._settings = event.settings
            case Admitted():
                if event.purpose == "train":
                    self._groups[event.group] = _Group(event.prompt, event.head)
                    self._tasks[event.prompt] = event.task
            case Skipped():
                self._tasks[event.prompt] = event.task
                if not event.attempt:
                    self._skipped.setdefault(event.task, set()).add(event.prompt)
            case Returned():
                self._passed |= self._skipped.pop(event.task, set())
            case Started() | Resumed() | Finished() | Voided():
                self._take_rollout(event)
            case Withheld():
                for ticket in event.tickets:
                    self._groups[event.group].sample(ticket).withheld = True
            case Consumed():
                self._consumed(event)
            case Committed():
                self._committed(event)
            case RolledBack():
                self._rolled_back(event)
            case _:
                pass

    def _take_rollout(self, event: Started | Resumed | Finished | Voided) -> None:
        if isinstance(event, Finished) and event.trial:
            first = self._trials.setdefault(event.trial, event.ticket)
            if first != event.ticket:
                self.broken.append(f"{first} and {event.ticket} were graded by one trial")
        group = self._groups.get(event.ticket.rpartition("/")[0])
        if group is None:
            return
        sample = group.sample(event.ticket)
        match event:
            case Started():
                sample.head = event.version
            case Resumed():
                sample.resumed = event.version
            case Finished():
                sample.graded = True
                sample.segments = tuple(segment.version for segment in event.segments)
            case Voided():
                sample.graded = False

    def _consumed(self, event: Consumed) -> None:
        if event.version != self._version:
            self.broken.append(f"a step starts from {event.version}, the run is at {self._version}")
        self._training = event.groups
        for name in event.groups:
            group = self._groups.get(name)
            if group is None:
                self.broken.append(f"group {name} was trained on and never admitted")
                continue
            if group.prompt in self._trained:
                self.broken.append(f"prompt {group.prompt} was trained on twice")
            self._check_samples(name, group)

    def _check_samples(self, name: str, group: _Group) -> None:
        bound = self._settings.max_staleness if self._settings else 0
        used = [one for one in group.samples.values() if one.graded and not one.withheld]
        if not used:
            self.broken.append(f"group {name} was trained on and has no graded rollout")
        for version in (version for sample in used for version in sample.versions()):
            age = self._version.number - version.number
            if version not in self._ancestry:
                self.broken.append(
                    f"group {name} has tokens of version {version}, which is abandoned or unknown"
                )
            elif age > bound:
                self.broken.append(f"group {name} was trained on at age {age}, {bound} is allowed")

    def _committed(self, event: Committed) -> None:
        if not self._training:
            self.broken.append(f"version {event.version} was committed without a batch")
        for name in self._training:
            if name in self._groups:
                self._trained[self._groups[name].prompt] = event.version
        self.batches.append(_Step(event.version, self._training))
        self._training = ()
        self._version = event.version
        self._ancestry.add(event.version)

    def _rolled_back(self, event: RolledBack) -> None:
        if event.parent not in self._ancestry:
            self.broken.append(
                f"the run was rolled back to version {event.parent}, which is not in its lineage"
            )
        upto = event.parent.number
        self._ancestry = {version for version in self._ancestry if version.number <= upto}
        self._ancestry.add(event.version)
        self._trained = {p: made for p, made in self._trained.items() if made.number <= upto}
        self.batches = [step for step in self.batches if step.made.number <= upto]
        self._training = ()
        self._version = event.version

    def prompts(self) -> list[tuple[int, ...]]:
        """The prompts of each batch of the surviving lineage."""
        return [tuple(self._groups[name].prompt for name in step.groups) for step in self.batches]

    def against(self, books: Books) -> list[str]:
        """Differences between the books and the events about the trained groups."""
        wrong: list[str] = []
        if books.version != self._version:
            wrong.append(f"the books are at version {books.version}, the events at {self._version}")
        if books.tally.consumed != len(self._trained):
            wrong.append(
                f"the books have {books.tally.consumed} groups consumed, "
                f"the events {len(self._trained)}"
            )
        if lost := self._lost(books):
            wrong.append(f"prompts {', '.join(map(str, lost))} are lost")
        return wrong

    def _lost(self, books: Books) -> list[int]:
        """Begun prompts that are neither live, requeued nor trained on, except those of excluded
        tasks."""
        found = self._trained.keys() | books.pending.keys()
        found |= {group.prompt for group in books.groups.values()}
        nowhere = set(range(books.next_prompt)) - found - self._passed
        return sorted(p for p in nowhere if self._tasks.get(p) not in books.quarantined)[:10]


def disagreements(books: Books) -> list[str]:
    """Figures of the books that do not add up; empty if all do."""
    tally, groups = books.tally, books.groups.values()
    training = sum(group.training for group in groups)
    opened = [group.open for group in groups]
    running = sum(count > 0 for count in opened)
    buffered = books.live - training - running
    wrong: list[str] = []
    accounted = running + buffered + training + tally.consumed + tally.voided
    if tally.admitted != accounted:
        wrong.append(f"{tally.admitted} groups were admitted, {accounted} are accounted for")
    prompts = books.live + len(books.pending) + tally.consumed + tally.quarantined
    if books.next_prompt != prompts:
        wrong.append(f"{books.next_prompt} prompts were begun, {prompts} are accounted for")
    if buffered != books.queue.ready:
        wrong.append(f"{buffered} groups are ready, the queue has {books.queue.ready}")
    in_flight = sum(opened) + sum(group.open for group in books.evals.values())
    if books.running != in_flight:
        wrong.append(f"{in_flight} rollouts are in flight, {books.running} are counted")
    if books.live and books.pending:
        both = books.pending.keys() & {group.prompt for group in groups}
        if both:
            wrong.append(f"prompts {sorted(both)} are both live and requeued")
    return wrong
