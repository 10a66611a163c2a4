"""What is tried next, and what soon: the tickets of a run, with its canaries woven in."""

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.directory import RunDirectory
from plimsoll.tasks.task import Task

__all__ = ["CANARY_AGENT", "Hints", "Ticket", "Upcoming"]

CANARY_AGENT = "oracle"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One attempt at one task. Attempts count from 1."""

    task: Task
    attempt: int
    agent: str = ""
    """Who acts, where it is not the run's one agent."""
    canary: bool = False

    @property
    def label(self) -> str:
        agent = f".{self.agent}" if self.agent else ""
        return f"{self.task.name}{agent}.{self.attempt}" + (" (canary)" if self.canary else "")

    def folder(self, directory: RunDirectory) -> Path:
        """Where the trial writes."""
        if self.canary:
            return directory.canary(self.task.name, self.attempt)
        return directory.trial(self.task.name, self.attempt, self.agent)


class Hints(Protocol):
    """Is told of tickets before their trials start, so that what they need can be there."""

    def coming(self, ticket: Ticket) -> None: ...

    def over(self, ticket: Ticket) -> None:
        """The ticket's trial has ended, or will not be. Said once of each that was coming."""
        ...


class Upcoming:
    """Hands out tickets in their order, the next `ahead` of which are hinted at."""

    def __init__(
        self,
        tickets: Iterable[Ticket],
        *,
        ahead: int,
        tasks: Mapping[str, Task],
        canaries: Canaries | None = None,
        hints: Hints | None = None,
    ) -> None:
        self._tickets = iter(tickets)
        self._ahead = ahead
        self._tasks = tasks
        self._canaries = canaries
        self._hints = hints
        self._next: deque[Ticket] = deque()
        self._canary: Ticket | None = None
        """The next canary, where one is due soon."""
        self._numbers = itertools.count(1)

    def take(self) -> Ticket | None:
        """A canary that is due, or the next ticket; None where none is left."""
        self._look_ahead()
        if self._canaries is not None and (name := self._canaries.take()) is not None:
            taken = self._take_canary(name)
        else:
            taken = self._next.popleft() if self._next else None
            if self._canaries is not None and taken is not None:
                self._canaries.trial_started()
        self._look_ahead()
        return taken

    def over(self, ticket: Ticket) -> None:
        """The trial of a ticket that was taken has ended."""
        if self._hints is not None:
            self._hints.over(ticket)

    def stop(self) -> None:
        """No more will be taken."""
        for ticket in (*self._next, *((self._canary,) if self._canary else ())):
            self.over(ticket)
        self._next.clear()
        self._canary = None
        self._tickets = iter(())

    def _look_ahead(self) -> None:
        for ticket in itertools.islice(self._tickets, self._ahead - len(self._next)):
            self._next.append(ticket)
            self._coming(ticket)
        if self._canary is None and self._canaries is not None:
            name = self._canaries.due_within(len(self._next))
            if name is not None:
                self._canary = self._coming(self._make_canary(name))

    def _take_canary(self, name: str) -> Ticket:
        if self._canary is None:
            return self._coming(self._make_canary(name))
        taken, self._canary = self._canary, None
        return taken

    def _make_canary(self, name: str) -> Ticket:
        return Ticket(self._tasks[name], next(self._numbers), CANARY_AGENT, canary=True)

    def _coming(self, ticket: Ticket) -> Ticket:
        if self._hints is not None:
            self._hints.coming(ticket)
        return ticket
