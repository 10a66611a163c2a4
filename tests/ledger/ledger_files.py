"""Ledgers on disk, for tests."""

import sqlite3
import time
from pathlib import Path

from driven_run import settings

from plimsoll.core.ids import Owner
from plimsoll.core.versions import FIRST_VERSION
from plimsoll.ledger.events import Admitted, Configured, Event, Finished
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.journal.location import FILE
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.recovery import subject_of

ME = Owner("here", 4711, "now")


def ledger(folder: Path, **changes) -> Ledger:
    return Ledger(folder, settings(**changes), ME, time.time)


def some_events() -> list[Event]:
    return [
        Configured(number=0, settings=settings()),
        *(
            Admitted(group=f"{n}-0", prompt=n, task=f"task-{n}", head=FIRST_VERSION, size=1)
            for n in range(4)
        ),
        Finished(ticket="0-0/0.0", reward=1.0, ending="submitted", seconds=2.0),
    ]


def written(folder: Path) -> Path:
    """A journal with some events, closed."""
    journal = Journal.create(folder / FILE)
    journal.append((event, subject_of(event)) for event in some_events())
    journal.close()
    return folder / FILE


def bytes_of(path: Path) -> dict[str, bytes]:
    """The file, and the files with data that SQLite keeps beside it."""
    beside = [path, path.with_name(path.name + "-wal")]
    return {one.name: one.read_bytes() for one in beside if one.exists() and one.stat().st_size}


def change(path: Path, sql: str) -> None:
    """Change the file without the journal."""
    other = sqlite3.connect(path)
    with other:
        other.execute(sql)
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
