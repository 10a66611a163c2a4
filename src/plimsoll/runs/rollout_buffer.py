"""The rollout buffer: the rows of rollouts until their group is trained on, backed by files."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from plimsoll.core.errors import LedgerError
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group, Member, MemberState, split_ticket
from plimsoll.runs.batches import Batch, BatchGroup, Rollout
from plimsoll.runs.files.directory import RunDirectory, last_use
from plimsoll.runs.files.json_lines import read_lines
from plimsoll.runs.files.results import Row, voided
from plimsoll.tasks.task import Task
from plimsoll.trials.verdicts import Cause, Void
from plimsoll.workers.messages import Order

__all__ = ["RolloutBuffer", "attempt_of", "training_order"]


class RolloutBuffer:
    """The rows of graded members of live groups."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._rows: dict[str, Row] = {}
        self._folders: dict[str, str] = {}
        """The folder of each ticket, void members included."""

    def __len__(self) -> int:
        return len(self._rows)

    @classmethod
    def load(cls, directory: RunDirectory, books: Books) -> "RolloutBuffer":
        """The buffer of an earlier process, from the run directory and the books."""
        made = cls(directory)
        for row in read_lines(directory.results, Row):
            found = books.find(row.ticket) if row.ticket else None
            # A power cut may leave the row of a trial that is not in the ledger, and lose the row
            # of the graded trial of the same ticket.
            if found is not None and found[1].trial in ("", row.trial):
                made._note(row, is_graded=found[1].state is MemberState.GRADED)
        return made

    def _note(self, row: Row, *, is_graded: bool) -> None:
        """Keep the last row of a ticket: it may revoke an earlier grade."""
        self._rows.pop(row.ticket, None)
        if is_graded and row.reward is not None:
            self._rows[row.ticket] = row
        self._folders[row.ticket] = row.folder

    async def add(self, row: Row) -> None:
        """Add a finished trial; returns when its line is in the file."""
        self._note(row, is_graded=True)
        await self._directory.append(row)

    def take(self, tickets: Iterable[str]) -> list[Row]:
        """Remove and return the rows of these tickets: their grades may be revoked."""
        return [row for ticket in tickets if (row := self._rows.pop(ticket, None)) is not None]

    async def void(self, rows: Iterable[Row], verdict: Void) -> None:
        """Write void rows for these: their grades are revoked."""
        await self._append(voided(row, verdict.cause, verdict.reason) for row in rows)

    def missing(self, books: Books) -> list[str]:
        """Tickets of graded members of live groups without a row: their trajectory is unknown."""
        return [
            group.ticket(index)
            for group in books.groups.values()
            for index, member in enumerate(group.members)
            if member.state is MemberState.GRADED and group.ticket(index) not in self._rows
        ]

    async def note_lost(self, books: Books) -> int:
        """Write void rows for tickets that ran when the run was killed; returns their number."""
        lost = [
            self._lost(group, index)
            for group in books.groups.values()
            for index, member in enumerate(group.members)
            if member.state is MemberState.RUNNING
        ]
        await self._append(lost)
        return len(lost)

    async def _append(self, rows: Iterable[Row]) -> None:
        """Append all at once, in order."""
        await asyncio.gather(*(self._directory.append(row) for row in rows))

    def forget(self, books: Books) -> None:
        """Drop the tickets of groups that left the books."""
        self.drop([ticket for ticket in self._folders if books.find(ticket) is None])

    def drop(self, tickets: Iterable[str]) -> None:
        """Drop these tickets: they are finished, or were retried under another name."""
        for ticket in tickets:
            self._rows.pop(ticket, None)
            self._folders.pop(ticket, None)

    def batch(self, groups: Iterable[Group], books: Books) -> Batch:
        """The batch of these groups, for a trainer."""
        return Batch(
            step=books.version.number + 1,
            version=books.version,
            groups=tuple(self._group(group) for group in groups),
        )

    def _group(self, group: Group) -> BatchGroup:
        members = [self._rollout(group, index, one) for index, one in enumerate(group.members)]
        return BatchGroup(id=group.id, task=group.task, prompt=group.prompt, members=tuple(members))

    def _rollout(self, group: Group, index: int, member: Member) -> Rollout:
        ticket = group.ticket(index)
        row = self._rows.get(ticket)
        is_graded = member.state is MemberState.GRADED
        if is_graded and row is None:
            # Without its row it would be trained on as a rollout without answers.
            raise LedgerError(
                f"the graded rollout {ticket} has no row: a bug in Plimsoll. Resume the run: it "
                f"reads {self._directory.results} again, and rolls the group out again if the row "
                "is missing there"
            )
        return Rollout(
            ticket=ticket,
            task=group.task,
            reward=member.reward if is_graded else None,
            trajectory=self._directory.stored(row.trajectory) if row is not None else "",
            head=member.head,
            oldest=member.oldest,
            newest=member.newest,
            withheld=member.withheld,
            seconds=member.seconds,
            sandbox_seconds=row.sandbox_seconds if row is not None else None,
            folder=self._folder(group, ticket),
            trial=member.trial if is_graded else "",
        )

    def _folder(self, group: Group, ticket: str) -> Path:
        if name := self._folders.get(ticket):
            return self._directory.path / name
        return self._directory.rollout(group.task, ticket)

    def _lost(self, group: Group, index: int) -> Row:
        ticket = group.ticket(index)
        folder = last_use(self._directory.rollout(group.task, ticket))
        return Row(
            task=group.task,
            attempt=attempt_of(group, index),
            verdict="void",
            reward=None,
            rewards=None,
            ending=None,
            cause=Cause.LOST,
            reason="the run was killed while it ran",
            seconds=0.0,
            ticket=ticket,
            folder=self._directory.inside(folder),
        )


def attempt_of(group: Group, index: int) -> int:
    """The number of a trial among those of its group's task, counted from 1."""
    return group.prompt * len(group.members) + index + 1


def training_order(group: Group, ticket: str, task: Task, folder: Path) -> Order:
    """The order of a training ticket."""
    parts = split_ticket(ticket)
    assert parts is not None, f"{ticket} is not a ticket"
    return Order(
        ticket=ticket,
        task=str(task.path),
        name=group.task,
        attempt=attempt_of(group, parts[1]),
        folder=str(folder.absolute()),
        seed_name=group.seed_name(parts[1]),
    )
