"""Files of a killed run as a power cut leaves them."""

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from plimsoll.ledger.journal.journal import Journal, is_durable

__all__ = ["cut_power"]

_HEADER, _FRAME = 32, 24
"""Bytes of a write-ahead log's header, and of that of each of its frames."""


def cut_power(run: Path) -> int:
    """Put the ledger back to its last event that was written through to the disk.

    The journal syncs the log with the transaction of such an event; of those after it a power
    cut may take all. Returns how many events are gone. The other files of the run stay: they
    may have reached the disk before.
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
    """The number of the last event, and whether it was synced. The file is left as it is."""
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
    """Where the transactions of a log end, the first of them being none."""
    page = int.from_bytes(log[8:12], "big")
    ends = [0]
    for start, end in pairwise(range(_HEADER, len(log) + 1, _FRAME + page)):
        is_of_now = log[start + 8 : start + 16] == log[16:24]
        if is_of_now and int.from_bytes(log[start + 4 : start + 8], "big"):
            ends.append(end)
    return ends
