"""The journal: each event once; an incomplete file is rejected and left unchanged."""

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ledger_files import bytes_of, change, some_events, written

from plimsoll.core.errors import LedgerError
from plimsoll.ledger.events import Ignored
from plimsoll.ledger.journal.journal import Journal, is_durable
from plimsoll.ledger.journal.location import FILE
from plimsoll.ledger.ledger import read_books
from plimsoll.ledger.recovery import subject_of


def test_events_are_read_in_the_order_they_were_written(tmp_path: Path):
    journal = Journal.open(written(tmp_path))
    assert [event for _, event in journal.read()] == some_events()
    assert [seq for seq, _ in journal.read(after=3)] == [4, 5, 6]
    assert journal.about("0-0") == [some_events()[1], some_events()[5]]
    journal.close()


def test_writing_an_event_twice_is_a_no_op(tmp_path: Path):
    journal = Journal.open(written(tmp_path), writable=True)
    again = [(event, subject_of(event)) for event in some_events()]
    assert journal.append(again) == 0
    assert journal.append([*again[:2], *again[:2]]) == 0
    assert journal.seq == 6
    assert [event for _, event in journal.read()] == some_events()
    journal.close()


def test_an_event_twice_in_one_write_is_written_once(tmp_path: Path):
    journal = Journal.create(tmp_path / FILE)
    [first, *_] = some_events()
    assert journal.append([(first, ""), (first, "")]) == 1
    journal.close()


def test_steps_are_durable_and_rollouts_are_not():
    assert not any(is_durable(event) for event in some_events())


def test_create_never_overwrites_an_existing_file(tmp_path: Path):
    path = written(tmp_path)
    before = bytes_of(path)
    with pytest.raises(LedgerError, match="exists already"):
        Journal.create(path)
    assert bytes_of(path) == before
    assert {file.name for file in tmp_path.iterdir()} == {FILE}


def test_an_interrupted_creation_does_not_block_the_next(tmp_path: Path):
    (tmp_path / f"{FILE}.part").write_bytes(b"half of it")
    Journal.create(tmp_path / FILE).close()
    Journal.open(tmp_path / FILE).close()


@pytest.mark.parametrize("content", [b"", b"SQLite", b"a letter to a friend\n" * 99])
def test_a_foreign_file_is_rejected(tmp_path: Path, content: bytes):
    path = tmp_path / FILE
    path.write_bytes(content)
    for writable in (False, True):
        with pytest.raises(LedgerError, match="is not a ledger; it is left as it is"):
            Journal.open(path, writable=writable)
    assert path.read_bytes() == content


def test_a_foreign_database_is_rejected(tmp_path: Path):
    path = tmp_path / FILE
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE events (seq INTEGER)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="a database of something else"):
        Journal.open(path, writable=True)
    assert path.read_bytes() == before


def test_a_newer_format_is_rejected(tmp_path: Path):
    path = written(tmp_path)
    change(path, "PRAGMA user_version=2")
    before = bytes_of(path)
    with pytest.raises(LedgerError, match="its format is 2, this one reads 1"):
        Journal.open(path, writable=True)
    assert bytes_of(path) == before


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(LedgerError, match=r"cannot open the ledger .*ledger.db: No such file"):
        Journal.open(tmp_path / FILE)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_rejected(tmp_path: Path, kept: float):
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    before = bytes_of(path)
    with pytest.raises(LedgerError, match=r"is damaged .*it is left as it is"):
        read_books(Journal.open(path))
    assert bytes_of(path) == before


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE events SET data = (SELECT data FROM events WHERE seq = 2) WHERE seq = 3",
        "UPDATE events SET digest = zeroblob(16) WHERE seq = 3",
        "UPDATE events SET data = zeroblob(9) WHERE seq = 3",
        "DELETE FROM events WHERE seq = 3",
        "UPDATE events SET seq = 99 WHERE seq = 3",
    ],
)
def test_a_changed_or_missing_row_is_detected(tmp_path: Path, sql: str):
    path = written(tmp_path)
    change(path, sql)
    before = bytes_of(path)
    with pytest.raises(LedgerError, match=r"is damaged .*event 3 (is missing|does not match)"):
        read_books(Journal.open(path))
    assert bytes_of(path) == before


def test_missing_last_rows_are_detected_by_the_snapshot(tmp_path: Path):
    path = written(tmp_path)
    journal = Journal.open(path, writable=True)
    journal.keep_snapshot(b"of after event 6")
    journal.close()
    change(path, "DELETE FROM events WHERE seq > 4")
    with pytest.raises(LedgerError, match="it has no event 6"):
        read_books(Journal.open(path))


def test_an_impossible_order_of_events_is_detected(tmp_path: Path):
    journal = Journal.create(tmp_path / FILE)
    journal.append((event, "") for event in [some_events()[0], some_events()[5]])
    with pytest.raises(LedgerError, match="event 2 cannot follow those before"):
        read_books(journal)
    journal.close()


def test_a_full_disk_is_an_error_and_keeps_written_events(tmp_path: Path):
    """A limit on the size of files stands in for a full disk."""
    path = written(tmp_path)
    script = f"""
        import resource, signal
        from pathlib import Path
        from plimsoll.core.errors import LedgerError
        from plimsoll.ledger.events import Ignored
        from plimsoll.ledger.journal.journal import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = Journal.open(Path({str(path)!r}), writable=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        written = 0
        try:
            for n in range(10_000):
                event = Ignored(number=n, what="x" * 2000, about="y")
                written += journal.append([(event, "")])
        except LedgerError as error:
            print(written, error)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    count, _, message = done.stdout.partition(" ")
    assert message.startswith(f"cannot write the ledger {path}: ")
    journal = Journal.open(path)
    assert journal.seq == 6 + int(count)
    assert sum(1 for _ in journal.read()) == journal.seq
    journal.close()


def test_a_reader_sees_later_writes(tmp_path: Path):
    path = written(tmp_path)
    writer, reader = Journal.open(path, writable=True), Journal.open(path)
    [extra] = [event for event in some_events() if subject_of(event) == "3-0"]
    assert reader.about("3-0") == [extra]
    writer.append([(Ignored(number=0, what="Finished", about="?"), "")])
    assert sum(1 for _ in reader.read()) == 7
    writer.close()
    reader.close()


def test_a_file_system_without_shared_memory_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def without_shared_memory(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{path.as_uri()}?vfs=unix-none", uri=True, isolation_level=None)

    monkeypatch.setattr("plimsoll.ledger.journal.journal.create", without_shared_memory)
    with pytest.raises(LedgerError, match=r"has no shared memory.*\[storage\] ledger"):
        Journal.create(tmp_path / FILE)
    assert not (tmp_path / FILE).exists()
