"""The ledger on disk: concurrent callers, cancelled callers, and a killed process."""

import asyncio
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driven_run import ORDER
from ledger_files import change, ledger

from plimsoll.core.endings import Ending
from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import Version
from plimsoll.ledger import ledger as ledger_module
from plimsoll.ledger.audit import Auditor, disagreements
from plimsoll.ledger.checkpoints import FOLDER, Checkpoints
from plimsoll.ledger.events import Segment
from plimsoll.ledger.journal import snapshot
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.journal.location import FILE
from plimsoll.ledger.ledger import Ledger, read_books
from plimsoll.ledger.report import make_report
from plimsoll.ledger.rules.batching import Batch
from plimsoll.trials.verdicts import Cause, Graded, Void

GRADED = Graded(1.0, Ending.SUBMITTED)


def on_disk(folder: Path) -> bytes:
    """The books from the file, read from its first event on."""
    journal = Journal.open(folder / FILE)
    books = snapshot.dump(read_books(journal, from_the_start=True))
    journal.close()
    return books


async def choice(opened: Ledger) -> Batch:
    chosen = opened.choose()
    assert isinstance(chosen, Batch)
    return chosen


async def test_a_change_is_written_when_its_call_returns(tmp_path: Path):
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
        assert on_disk(tmp_path) == snapshot.dump(opened.books)
        await opened.start("0-0/0.0", "w")
        await opened.void("0-0/0.0", Void(Cause.LOST, "gone"))
        for ticket in opened.accounts.waiting():
            await opened.finish(ticket, GRADED, 1.0)
        assert on_disk(tmp_path) == snapshot.dump(opened.books)
        await opened.consume(await choice(opened))
        assert await opened.commit("c1") == Version(0, 1)
        assert on_disk(tmp_path) == snapshot.dump(opened.books)
        assert opened.position == Journal.open(tmp_path / FILE).seq


async def test_a_reopened_ledger_has_the_same_books(tmp_path: Path):
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
        await opened.finish("1-0/0.0", GRADED, 1.0)
        before = snapshot.dump(opened.books)
    async with ledger(tmp_path) as opened:
        assert snapshot.dump(opened.books) == before


async def test_events_of_concurrent_callers_are_all_written_in_one_order(tmp_path: Path):
    async with ledger(tmp_path, batch_groups=100, max_running=500) as opened:
        await opened.admit(ORDER)

        async def work(ticket: str) -> None:
            await opened.start(ticket, "w")
            await opened.finish(ticket, GRADED, 1.0)

        async with asyncio.TaskGroup() as tasks:
            for ticket in opened.accounts.waiting():
                tasks.create_task(work(ticket))
        assert opened.books.buffered == 200
        assert on_disk(tmp_path) == snapshot.dump(opened.books)


async def test_of_two_equal_completions_one_is_accepted(tmp_path: Path):
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
        accepted = await asyncio.gather(*(opened.finish("0-0/0.0", GRADED, 1.0) for _ in range(5)))
        assert accepted == [True, False, False, False, False]
        assert opened.books.tally.ignored == {"Finished": 4}
        assert on_disk(tmp_path) == snapshot.dump(opened.books)


async def test_a_cancelled_caller_loses_no_event(tmp_path: Path):
    async with ledger(tmp_path, batch_groups=50) as opened:
        await opened.admit(ORDER)
        calls = [
            asyncio.ensure_future(opened.finish(ticket, GRADED, 1.0))
            for ticket in opened.accounts.waiting()
        ]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(end, asyncio.CancelledError) for end in ended) == 50
        assert opened.books.buffered == 100
    assert on_disk(tmp_path) == snapshot.dump(opened.books)


async def test_an_undone_step_can_be_repeated(tmp_path: Path):
    for n in range(3):
        async with ledger(tmp_path) as opened:
            await opened.recover(opened.books.version, lambda *_: True)
            await opened.admit(ORDER)
            for ticket in opened.accounts.waiting():
                await opened.finish(ticket, GRADED, 1.0)
            await opened.consume(await choice(opened))
            assert opened.books.rollbacks == n
    journal = Journal.open(tmp_path / FILE)
    auditor = Auditor()
    for _, event in journal.read():
        auditor.take(event)
    assert not auditor.broken
    journal.close()


async def test_an_outdated_batch_is_rejected_and_changes_nothing(tmp_path: Path):
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
        for ticket in opened.accounts.waiting():
            await opened.finish(ticket, GRADED, 1.0)
        batch = await choice(opened)
        await opened.consume(batch)
        await opened.commit()
        with pytest.raises(LedgerError, match="the batch of version 1 cannot be consumed"):
            await opened.consume(batch)
        with pytest.raises(LedgerError, match="there is no step to commit as version 2"):
            await opened.commit()
        assert on_disk(tmp_path) == snapshot.dump(opened.books)


async def test_a_failed_write_prevents_further_changes(tmp_path: Path):
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
        written = on_disk(tmp_path)
        other = Journal.open(tmp_path / FILE, writable=True)
        other._connection.execute("DROP TABLE events")  # pyright: ignore
        other.close()
        with pytest.raises(LedgerError, match="cannot write the ledger"):
            await opened.finish("0-0/0.0", GRADED, 1.0)
        ahead = snapshot.dump(opened.books)
        for _ in range(2):
            with pytest.raises(LedgerError, match="cannot write the ledger"):
                await opened.finish("1-0/0.0", GRADED, 1.0)
        assert snapshot.dump(opened.books) == ahead != written


CHILD = """
import asyncio, os, random, sys, time
from pathlib import Path
from plimsoll.core.endings import Ending
from plimsoll.core.ids import Owner
from plimsoll.ledger.rules.batching import Batch
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Graded

async def main():
    settings = Settings(batch_groups=2, max_running=100, depth=1, max_staleness=2, group_size=1)
    order = DataOrder([f"task-{n}" for n in range(50)])
    async with Ledger(Path(sys.argv[1]), settings, Owner("c", os.getpid(), ""), time.time) as led:
        await led.recover(led.books.version, lambda ticket, worker: False)
        while True:
            await led.admit(order)
            for ticket in led.accounts.waiting():
                await led.start(ticket, "w")
                if await led.finish(ticket, Graded(1.0, Ending.SUBMITTED), 1.0):
                    os.write(1, f"finished {ticket}\\n".encode())
            choice = led.choose()
            if isinstance(choice, Batch):
                await led.consume(choice)
                os.write(1, f"consumed {led.books.version} {' '.join(choice.ids)}\\n".encode())
                version = await led.commit()
                os.write(1, f"committed {version}\\n".encode())

asyncio.run(main())
"""


def test_acknowledged_writes_survive_kill_9(tmp_path: Path):
    """At random moments, repeatedly, over the same file."""
    rng = random.Random(5)
    ever = 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        read = [child.stdout.readline() for _ in range(rng.randint(1, 60))]
        time.sleep(rng.uniform(0.0, 0.05))  # between two of its lines, or within one
        child.send_signal(signal.SIGKILL)
        lines = b"".join([*read, child.communicate()[0]]).decode().splitlines()
        journal = Journal.open(tmp_path / FILE)
        events = [event for _, event in journal.read()]
        books = read_books(journal)
        journal.close()
        ids = {event.id for event in events}
        committed = [line.split()[1] for line in lines if line.startswith("committed")]
        assert all(f"commit:{version}" in ids for version in committed)
        finished = [line.split()[1] for line in lines if line.startswith("finished")]
        assert all(f"final:{ticket}" in ids for ticket in finished)
        ever += len(finished)
        auditor = Auditor()
        for event in events:
            auditor.take(event)
        assert auditor.broken == [] == auditor.against(books) == disagreements(books)
    assert books.version.number > 8 and ever > 8


HELD = """
import asyncio, os, sys, time
from pathlib import Path
from plimsoll.core.ids import Owner
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.report import make_report
from plimsoll.ledger.settings import Settings

async def main():
    folder = Path(sys.argv[1])
    settings = Settings(batch_groups=2, max_running=100, depth=1, max_staleness=2, group_size=1)
    async with Ledger(folder, settings, Owner("c", os.getpid(), ""), time.time) as led:
        await led.admit(DataOrder(["a", "b"]))
        await asyncio.to_thread(make_report, folder)
        os.write(1, b"open\\n")
        sys.stdin.readline()
        for ticket in led.accounts.waiting():
            await led.start(ticket, "w")
        os.write(1, f"{led.position}\\n".encode())
        sys.stdin.readline()

asyncio.run(main())
"""
ANOTHER_READER = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT count(*) FROM events").fetchone()
other.close()
"""


def test_a_second_program_can_read_a_live_ledger_without_damage(tmp_path: Path):
    """The last process to close a database removes its log: a reader must detect that another
    process has it open, also after that process has made a report of it."""
    child = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "open\n"
    subprocess.run([sys.executable, "-c", ANOTHER_READER, tmp_path / FILE], check=True)
    assert (tmp_path / f"{FILE}-wal").exists()
    print("go on", file=child.stdin, flush=True)
    written = int(child.stdout.readline())
    child.kill()
    child.communicate()
    journal = Journal.open(tmp_path / FILE)
    assert journal.seq == written > 5
    journal.close()


async def _two_steps(folder: Path) -> Ledger:
    """A ledger that is never closed, with checkpoints of two steps."""
    folder.mkdir()
    opened = await ledger(folder).__aenter__()
    checkpoints = Checkpoints(folder / FOLDER)
    for number in (1, 2):
        await opened.admit(ORDER)
        for ticket in opened.accounts.waiting():
            await opened.finish(ticket, GRADED, 1.0)
        await opened.consume(await choice(opened))
        made = Version(0, number)
        checkpoints.write(made, opened.position, lambda _: None, opened.books.lineages)
        await opened.commit(f"v0-{number:08d}")
    return opened


@pytest.mark.parametrize("left", [0.0, 0.3, 0.6])
async def test_a_ledger_without_its_last_events_is_rejected_unchanged(tmp_path: Path, left: float):
    opened = await _two_steps(tmp_path / "run")
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(tmp_path / "run" / FOLDER, copy / FOLDER)
    for name in (FILE, f"{FILE}-wal"):
        shutil.copyfile(tmp_path / "run" / name, copy / name)
    await opened.__aexit__(None, None, None)
    log = copy / f"{FILE}-wal"
    whole = log.read_bytes()
    log.write_bytes(whole[: int(len(whole) * left)])
    with pytest.raises(LedgerError, match="the ledger's last events are missing"):
        async with ledger(copy):
            pass
    (problem,) = make_report(copy, check=True).problems
    assert "the ledger's last events are missing" in problem
    assert len(Checkpoints(copy / FOLDER).all()) == 2
    # With the log restored, it continues.
    log.write_bytes(whole)
    (copy / f"{FILE}-shm").unlink(missing_ok=True)
    async with ledger(copy) as again:
        assert again.books.version == Version(0, 2)


async def test_many_short_runs_together_write_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ledger_module, "_SNAPSHOT_EVERY", 20)
    lives = []
    for life in range(4):
        copy = tmp_path / str(life)
        copy.mkdir()
        if lives:
            for name in (FILE, f"{FILE}-wal"):
                shutil.copyfile(tmp_path / str(life - 1) / name, copy / name)
        opened = await ledger(copy, depth=2 * life, max_staleness=9).__aenter__()
        lives.append(opened)
        for ticket in opened.accounts.waiting():
            await opened.start(ticket, "w")
        await opened.admit(ORDER)
        # Written after the snapshot, if there is one: then the snapshot is on disk.
        await opened.start(next(iter(opened.accounts.waiting())), "w")
    journal = Journal.open(tmp_path / "3" / FILE)
    assert 0 < journal.since_snapshot <= 20
    journal.close()
    for opened in lives:
        await opened.__aexit__(None, None, None)


async def test_a_check_finds_an_event_stored_under_another_group(tmp_path: Path):
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
    change(tmp_path / FILE, "UPDATE events SET subject = '1-0' WHERE subject = '0-0'")
    problems = make_report(tmp_path, check=True).problems
    assert problems
    assert all("is stored under another id or subject" in problem for problem in problems)


async def test_a_check_reports_an_id_that_is_not_text(tmp_path: Path):
    async with ledger(tmp_path) as opened:
        await opened.admit(ORDER)
    change(tmp_path / FILE, "UPDATE events SET id = CAST(x'ff' AS TEXT) WHERE seq = 2")
    problems = make_report(tmp_path, check=True).problems
    assert any("its ids and subjects" in problem for problem in problems)


async def test_rollouts_with_tokens_of_an_unknown_version_are_not_retried_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with ledger(tmp_path, requeues=1) as opened:
        (first, *_) = await opened.admit(ORDER)
        strange = [Segment(Version(7, 7), 5)]
        for _ in range(40):
            ticket = next((t for t in opened.accounts.waiting() if t.startswith("0-")), None)
            if ticket is None:
                await opened.admit(ORDER)
                continue
            await opened.finish(ticket, GRADED, 1.0, strange)
        assert list(opened.books.quarantined) == [first.task]
    assert "is void: it has tokens of the unknown version 7:7" in caplog.text
