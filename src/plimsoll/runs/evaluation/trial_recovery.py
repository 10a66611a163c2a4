"""Recovery of a trial set: continues with the ledger and the rows of an earlier process.

The ledger has the final trials. A killed process may have written the row of a trial and not its
event: the trial is final by its row. A power cut may have removed a row: it is written again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.ledger.books.group import MemberState, split_ticket
from plimsoll.ledger.events import Admitted, Finished, GroupVoided, Voided
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.json_lines import read_lines
from plimsoll.runs.files.results import Row
from plimsoll.runs.scheduling.trial_set import TrialGroup, TrialSet
from plimsoll.trials.verdicts import Graded, Void

__all__ = ["restore_trials"]


@dataclass(slots=True)
class _RecordedGroup:
    """The ledger's record of a group of one, with the end of its last ticket."""

    admitted: Admitted
    ticket: str = ""
    end: Finished | Voided | None = None
    """None while the group is live."""
    is_given_up: bool = False

    def matches(self, row: Row) -> bool:
        """True if a row is of the trial that the ledger recorded as the last of this group.

        A power cut may leave the row of a trial that is not in the ledger, and lose the row of the
        recorded one. A void row of a graded trial is right: a failed canary revoked the grade.
        """
        if isinstance(self.end, Finished):
            return self.end.trial in ("", row.trial)
        return self.end is not None and row.reward is None


async def restore_trials(trials: TrialSet, ledger: Ledger, directory: RunDirectory) -> None:
    """Continue a trial set whose groups have one member each. Its running trials are lost, and
    tried again."""
    last = {row.ticket: row for row in read_lines(directory.results, Row)}
    await _enter_rows(last.values(), ledger)
    await ledger.recover(
        ledger.books.version, lambda _ticket, _worker: False, keep_evaluations=True
    )
    recorded = _read_groups(ledger.path)
    _check_same(trials, [group.admitted.task for group in recorded.values()], directory)
    rows: dict[tuple[str, int], Row] = {}
    for name, group in recorded.items():
        if group.end is not None:
            row = last.get(group.ticket)
            if row is None or not group.matches(row):
                row = _row_of(group, group.end, trials.groups[group.admitted.prompt])
                await directory.append(row)
            rows[(name, 0)] = row
        elif group.is_given_up:
            raise LedgerError(f"{directory.path}: the ledger gave up the trial {name}")
    trials.restore(len(recorded), ledger.books.evals, rows)


async def _enter_rows(rows: Iterable[Row], ledger: Ledger) -> None:
    """Enter the rows of trials that the ledger has as running: they had ended.

    The row of a trial that the ledger has not started is left from before a power cut. Its ticket
    is run anew.
    """
    for row in rows:
        found = ledger.books.find(row.ticket)
        if found is None or found[1].state is not MemberState.RUNNING:
            continue
        if row.reward is not None and row.ending is not None:
            graded = Graded(row.reward, row.ending)
            await ledger.finish(row.ticket, graded, row.seconds, trial=row.trial)
        elif row.cause is not None:
            await ledger.void(row.ticket, Void(row.cause, row.reason or ""), row.seconds)


def _read_groups(path: Path) -> dict[str, _RecordedGroup]:
    """The evaluation groups of a ledger in the order of admission."""
    journal = Journal.open(path)
    found: dict[str, _RecordedGroup] = {}
    try:
        for _, event in journal.read():
            match event:
                case Admitted(purpose="eval"):
                    found[event.group] = _RecordedGroup(event)
                case Finished() | Voided(retry=False):
                    parts = split_ticket(event.ticket)
                    if parts is not None and parts[0] in found:
                        found[parts[0]].ticket = event.ticket
                        found[parts[0]].end = event
                case GroupVoided() if event.group in found:
                    found[event.group].is_given_up = True
                case _:
                    pass
    finally:
        journal.close()
    return found


def _row_of(group: _RecordedGroup, end: Finished | Voided, trial: TrialGroup) -> Row:
    """A row made from the ledger alone, for a trial whose line was lost in a power cut."""
    graded = isinstance(end, Finished)
    return Row(
        task=group.admitted.task,
        attempt=trial.attempt or group.admitted.prompt + 1,
        verdict="graded" if graded else "void",
        reward=end.reward if graded else None,
        rewards=None,
        ending=end.ending if graded else None,
        cause=None if graded else end.cause,
        reason=None if graded else Void(end.cause, end.reason).reason,
        seconds=round(end.seconds, 3),
        agent=trial.agent,
        ticket=end.ticket,
        trial=end.trial if graded else "",
    )


def _check_same(trials: TrialSet, admitted: Sequence[str], directory: RunDirectory) -> None:
    names = [group.task.name for group in trials.groups[: len(admitted)]]
    if names != list(admitted):
        raise UsageError(
            f"{directory.path} cannot be resumed: its tasks are not those that it began with; put "
            "them back, or start another"
        )
