"""The audit of a run: checks its ledger, and that its records belong to the graded trials.

After a power cut a ticket may have two trials: one that the ledger has lost, whose files still
exist, and the graded one. Their ids tell them apart.
"""

from pathlib import Path

import msgspec

from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group, MemberState, split_ticket
from plimsoll.ledger.events import Finished, GroupVoided
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.ledger import read_books
from plimsoll.ledger.report import Report, find_ledger, make_report
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.json_lines import read_lines
from plimsoll.runs.files.results import Row

__all__ = ["audit"]


class _Verdict(msgspec.Struct):
    """The part of `verdict.json` that identifies its trial."""

    trial: str = ""


def audit(run: Path, task: str | None = None) -> Report:
    """The report on a run, or on a ledger alone, with all problems found."""
    report = make_report(run, check=True, task=task)
    directory = RunDirectory(run)
    if report.problems or not directory.results.is_file():
        return report
    journal = Journal.open(find_ledger(run))
    try:
        with journal.as_of_now():
            graded, books = _graded(journal), read_books(journal)
    finally:
        journal.close()
    rows = {row.ticket: row for row in read_lines(directory.results, Row) if row.trial}
    problems = [
        f"{ticket}: the ledger graded the trial {trial}, and {directory.results} has the row of "
        f"the trial {rows[ticket].trial}"
        for ticket, trial in graded.items()
        if ticket in rows and rows[ticket].trial != trial
    ]
    problems += _foreign_verdicts(directory, books, rows)
    return msgspec.structs.replace(report, problems=problems)


def _graded(journal: Journal) -> dict[str, str]:
    """The graded trial of each ticket, for groups that were not given up."""
    graded: dict[str, str] = {}
    given_up: set[str] = set()
    for _, event in journal.read():
        match event:
            case Finished() if event.trial:
                graded[event.ticket] = event.trial
            case GroupVoided():
                given_up.add(event.group)
            case _:
                pass
    return {
        ticket: trial
        for ticket, trial in graded.items()
        if (parts := split_ticket(ticket)) is not None and parts[0] not in given_up
    }


def _foreign_verdicts(directory: RunDirectory, books: Books, rows: dict[str, Row]) -> list[str]:
    """Folders of rollouts awaiting training that hold the verdict of another trial."""
    wrong: list[str] = []
    for row in (rows.get(ticket) for group in books.groups.values() for ticket in _final(group)):
        if row is None:
            continue
        file = directory.folder_of(row) / "verdict.json"
        try:
            found = msgspec.json.decode(file.read_bytes(), type=_Verdict)
        except (OSError, msgspec.MsgspecError):
            continue  # lost in a power cut; training does not read it
        if found.trial not in ("", row.trial):
            wrong.append(
                f"{row.ticket}: {file} is of the trial {found.trial}, not of {row.trial}, which "
                "was graded"
            )
    return wrong


def _final(group: Group) -> list[str]:
    return [
        group.ticket(index)
        for index, member in enumerate(group.members)
        if member.state is MemberState.GRADED
    ]
