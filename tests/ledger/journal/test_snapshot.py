"""Snapshots: equal to the books of all events, and never used if they are not."""

import logging
import sqlite3
from pathlib import Path

import pytest
from driven_run import ORDER
from ledger_files import change, ledger
from worlds import plan_for

from plimsoll.core.endings import Ending
from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import FIRST_VERSION
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.journal import snapshot
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.journal.location import FILE
from plimsoll.ledger.ledger import read_books
from plimsoll.ledger.simulator.training import Training
from plimsoll.trials.verdicts import Graded

GRADED = Graded(1.0, Ending.SUBMITTED)


@pytest.mark.parametrize("seed", range(60))
def test_dumped_books_can_be_loaded(seed: int):
    """Loaded in the middle of a run and continued, they equal the books of the whole journal."""
    run = Training(plan_for(seed))
    run.run()
    events = run.store.events
    for cut in (0, len(events) // 3, 2 * len(events) // 3, len(events)):
        books = snapshot.load(snapshot.dump(after(events[:cut])))
        for event in events[cut:]:
            assert books.apply(event)
        assert snapshot.dump(books) == snapshot.dump(run.store.books())
        assert snapshot.dump(books) == snapshot.dump(run.accounts.books)


def after(events):
    books = Books()
    assert all(books.apply(event) for event in events)
    return books


async def run_a_while(folder: Path) -> bytes:
    async with ledger(folder) as opened:
        for _ in range(3):
            await opened.admit(ORDER)
            for ticket in opened.accounts.waiting():
                await opened.start(ticket, "w")
                await opened.finish(ticket, GRADED, 1.5)
            choice = opened.choose()
            await opened.consume(choice)
            await opened.commit()
        return snapshot.dump(opened.books)


async def test_close_writes_a_snapshot_of_the_current_books(tmp_path: Path):
    last = await run_a_while(tmp_path)
    journal = Journal.open(tmp_path / FILE)
    kept = journal.snapshot()
    assert kept is not None and kept.is_whole and kept.books == last
    assert kept.seq == journal.seq
    assert snapshot.dump(read_books(journal)) == last
    assert snapshot.dump(read_books(journal, from_the_start=True)) == last
    journal.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE snapshots SET books = zeroblob(20)",
        "UPDATE snapshots SET books = substr(books, 1, length(books) - 1) || x'07'",
        "UPDATE snapshots SET books = x''",
        "UPDATE snapshots SET digest = zeroblob(16)",
        "UPDATE snapshots SET seq = seq - 1",
    ],
)
async def test_a_damaged_snapshot_is_detected_and_not_used(tmp_path: Path, caplog, sql: str):
    last = await run_a_while(tmp_path)
    change(tmp_path / FILE, sql)
    journal = Journal.open(tmp_path / FILE)
    with caplog.at_level(logging.WARNING):
        assert snapshot.dump(read_books(journal)) == last
    assert "its snapshot is not used" in caplog.text
    journal.close()


async def test_a_snapshot_of_another_version_is_not_used(tmp_path: Path, caplog):
    last = await run_a_while(tmp_path)
    journal = Journal.open(tmp_path / FILE, writable=True)
    journal.keep_snapshot(b"\x81\xa3new\x01")
    assert snapshot.dump(read_books(journal)) == last
    assert "its snapshot is not used" in caplog.text
    journal.close()


async def test_only_events_after_the_snapshot_are_read(tmp_path: Path):
    await run_a_while(tmp_path)
    # Opening a run does not read events before the snapshot, not even a damaged one ...
    other = sqlite3.connect(tmp_path / FILE)
    with other:
        other.execute("UPDATE events SET data = zeroblob(3) WHERE seq = 2")
    other.close()
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
        assert opened.books.version.number == 3
        assert opened.books.live == 4
    # ... `--check` does.
    journal = Journal.open(tmp_path / FILE)
    with pytest.raises(LedgerError, match="event 2 does not match its digest"):
        read_books(journal, from_the_start=True)
    journal.close()


def test_equal_books_give_equal_bytes():
    assert snapshot.dump(Books()) == snapshot.dump(Books())
    assert snapshot.load(snapshot.dump(Books())).version == FIRST_VERSION
