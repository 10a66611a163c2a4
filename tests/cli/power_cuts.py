"""Simulates a power cut: removes the events of a killed run that are not durable."""

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from plimsoll.ledger.journal.journal import Journal, is_durable

__all__ = ["cut_power"]

_HEADER, _FRAME = 32, 24
"""The bytes of a write-ahead log's header, and of the header of a frame."""


def cut_power(run: Path) -> int:
    """Remove all events after the last durable one. Returns the number of removed events.

    The journal syncs the write-ahead log with the transaction of a durable event. A power cut can
    remove all later transactions. The other files of the run stay: they may have reached the disk
    earlier.
    """
    ledger, log = run / "ledger.db", run / "ledger.db-wal"
    before = _last(ledger)[0]
    for end in reversed(_commits(log.read_bytes())):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / ledger.name
            shutil.copyfile(ledger, copy)
            log.with_name("cut").write_bytes(log.read_bytes()[:end])
            shutil.copyfile(log.with_name("cut"), copy.with_name(log.name))
            seq, durable = _last(copy)
        if durable:
            break
    log.with_name("cut").replace(log)
    log.with_name("ledger.db-shm").unlink(missing_ok=True)
    return before - seq


def _last(ledger: Path) -> tuple[int, bool]:
    """The number of events, and True if the last one is durable. Does not change the file."""
    with tempfile.TemporaryDirectory() as folder:
        for path in ledger.parent.glob(f"{ledger.name}*"):
            shutil.copyfile(path, Path(folder) / path.name)
        journal = Journal.open(Path(folder) / ledger.name, writable=True)
        try:
            events = [event for _, event in journal.read()]
        finally:
            journal.close()
    return len(events), not events or is_durable(events[-1])


def _commits(log: bytes) -> list[int]:
    """The ends of the transactions of a log, after 0 for no transaction."""
    page = int.from_bytes(log[8:12], "big")
    ends = [0]
    for start, end in pairwise(range(_HEADER, len(log) + 1, _FRAME + page)):
        is_current = log[start + 8 : start + 16] == log[16:24]
        if is_current and int.from_bytes(log[start + 4 : start + 8], "big"):
            ends.append(end)
    return ends
