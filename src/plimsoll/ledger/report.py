"""Report of `plimsoll ledger`: books, ages, causes, tasks, and the audit."""

from pathlib import Path

import msgspec

from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.ledger.audit import Auditor, disagreements
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.tally import Tally
from plimsoll.ledger.checkpoints import FOLDER, Checkpoints
from plimsoll.ledger.journal import snapshot
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.journal.location import FILE, find, has_ledger, run_of
from plimsoll.ledger.ledger import read_books
from plimsoll.ledger.recovery import subject_of
from plimsoll.ledger.settings import Settings
from plimsoll.ledger.task_history import GroupHistory, Histories, TaskHistory

__all__ = ["CheckpointLine", "Counts", "Report", "find_ledger", "make_report"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Training groups by state. `admitted` is the sum of the five after it."""

    admitted: int
    running: int
    buffered: int
    training: int
    consumed: int
    voided: int


class CheckpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint."""

    name: str
    version: str
    position: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `--json` prints."""

    path: str
    events: int
    version: str
    lineage: int
    rollbacks: int
    settings: Settings | None
    groups: Counts
    rollouts_in_flight: int
    evaluations_in_flight: int
    prompts_begun: int
    prompts_pending: int
    tally: Tally
    duration_bias: float | None
    quarantined: dict[str, str]
    checkpoints: list[CheckpointLine]
    tasks: list[TaskHistory]
    history: list[GroupHistory] | None
    """Every group of the requested task."""
    checked: bool
    problems: list[str]
    """Problems found by a check; empty if there are none."""


def find_ledger(run: Path) -> Path:
    """The ledger of a run directory, or the file itself."""
    if run.is_dir() and has_ledger(run):
        return find(run).ledger
    if run.is_dir() or not run.exists():
        where = f"{run} holds no {FILE}" if run.is_dir() else f"there is no {run}"
        raise UsageError(f"{where}: name the directory of a run, or its ledger")
    return run


def make_report(run: Path, *, check: bool = False, task: str | None = None) -> Report:
    """Read a run's ledger, which may be in use, and report on it."""
    path = find_ledger(run)
    journal = Journal.open(path)
    try:
        with journal.as_of_now():
            return _report(journal, check=check, task=task)
    finally:
        journal.close()


def _report(journal: Journal, *, check: bool, task: str | None) -> Report:
    checkpoints = Checkpoints(run_of(journal.path.parent) / FOLDER)
    histories = Histories()
    problems: list[str] = []
    if check:
        books, problems = _check(journal, histories)
        if missing := checkpoints.beyond(books):
            problems.append(missing)
        for made in checkpoints.all():
            problems += [f"{made.name}: {file} is missing or does not match its digest"
                         for file in checkpoints.verify(made)]  # fmt: skip
    else:
        books = read_books(journal)
        for _, event in journal.read():
            histories.take(event)
    tasks = histories.tasks(books)
    if task is not None and task not in {each.task for each in tasks}:
        raise UsageError(f"{journal.path}: no group of the task {task!r} was ever admitted")
    lines = [
        CheckpointLine(name=made.name, version=str(made.version), position=made.position)
        for made in checkpoints.all()
    ]
    return Report(
        path=str(journal.path),
        events=journal.seq,
        version=str(books.version),
        lineage=books.version.lineage,
        rollbacks=books.rollbacks,
        settings=books.settings,
        groups=_counts(books),
        rollouts_in_flight=books.running,
        evaluations_in_flight=len(books.evals),
        prompts_begun=books.next_prompt,
        prompts_pending=len(books.pending),
        tally=books.tally.in_order(),
        duration_bias=books.tally.duration_bias,
        quarantined=books.quarantined,
        checkpoints=lines,
        tasks=tasks,
        history=None if task is None else histories.groups(books, task),
        checked=check,
        problems=problems,
    )


def _counts(books: Books) -> Counts:
    training = len(books.training)
    return Counts(
        admitted=books.tally.admitted,
        running=books.live - training - books.buffered,
        buffered=books.buffered,
        training=training,
        consumed=books.tally.consumed,
        voided=books.tally.voided,
    )


def _check(journal: Journal, histories: Histories) -> tuple[Books, list[str]]:
    """The books from the first event on, and all problems found."""
    books, auditor = Books(), Auditor()
    stored = journal.snapshot()
    problems: list[str] = []
    if stored is not None and not stored.is_whole:
        problems.append(f"the snapshot after event {stored.seq} does not match its digest")
        stored = None
    try:
        rows = zip(journal.read(), journal.ids_and_subjects(), strict=False)
        for (seq, event), stored_as in rows:
            if stored_as != (event.id, subject_of(event)):
                problems.append(f"event {seq}, {event.id}, is stored under another id or subject")
            if not books.apply(event):
                problems.append(f"event {seq}, {event.id}, cannot follow those before")
                break
            auditor.take(event)
            histories.take(event)
            if stored is not None and seq == stored.seq and snapshot.dump(books) != stored.books:
                problems.append(f"the snapshot after event {seq} does not match the events")
    except LedgerError as error:
        problems.append(str(error))
    problems += disagreements(books)
    problems += auditor.broken
    problems += auditor.against(books)
    return books, problems
