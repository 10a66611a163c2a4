"""One writer at a time, within a process and across processes, for as long as it lives."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ledger_files import ME, ledger

from plimsoll.core.errors import LedgerError
from plimsoll.ledger.journal import lock
from plimsoll.ledger.journal.location import FILE
from plimsoll.ledger.journal.lock import Lock, is_held

HOLD = """
import asyncio, os, sys, time
from pathlib import Path
from plimsoll.core.ids import Owner
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.settings import Settings

async def main():
    settings = Settings(batch_groups=1, max_running=8)
    async with Ledger(Path(sys.argv[1]), settings, Owner("there", os.getpid(), ""), time.time):
        print("held", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that has the run's ledger open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


async def test_a_second_process_is_rejected_and_the_holder_is_named(tmp_path: Path, holder):
    with pytest.raises(LedgerError, match=f"is held by process {holder.pid} on there") as refused:
        async with ledger(tmp_path):
            pass
    assert str(tmp_path / FILE) in str(refused.value)


async def test_the_lock_is_free_after_its_holder_was_killed(tmp_path: Path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    async with ledger(tmp_path) as opened:
        assert opened.books.settings is not None


async def test_the_lock_is_free_after_its_holder_ended(tmp_path: Path, holder):
    holder.communicate("\n")
    async with ledger(tmp_path):
        pass


async def test_a_second_lock_of_the_same_process_is_rejected(tmp_path: Path):
    async with ledger(tmp_path):
        with pytest.raises(LedgerError, match=f"process {ME.pid} on {ME.host}"):
            async with ledger(tmp_path):
                pass
    async with ledger(tmp_path):
        pass


def test_a_forked_child_does_not_inherit_the_lock(tmp_path: Path):
    """A worker that outlives its controller must not block the run."""
    script = f"""
        import os, time
        from pathlib import Path
        from plimsoll.core.ids import Owner
        from plimsoll.ledger.journal.lock import Lock
        lock = Lock.take(Path({str(tmp_path / "x.lock")!r}), Owner("h", 1, ""))
        if not (child := os.fork()):
            os.close(1)
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        os._exit(0)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, check=True
    )
    try:
        Lock.take(tmp_path / "x.lock", ME).release()
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_an_uncreatable_lock_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(LedgerError, match=r"cannot open .*nowhere/ledger.lock: No such file"):
        Lock.take(tmp_path / "nowhere" / "ledger.lock", ME)


async def test_a_failed_open_releases_the_lock(tmp_path: Path):
    (tmp_path / FILE).write_bytes(b"a letter to a friend")
    with pytest.raises(LedgerError, match="is not a ledger"):
        async with ledger(tmp_path):
            pass
    Lock.take(tmp_path / "ledger.lock", ME).release()


async def test_any_process_can_check_the_lock(tmp_path: Path, holder):
    path = tmp_path / "ledger.lock"
    assert is_held(path) is True
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert is_held(path) is False
    assert is_held(tmp_path / "never.lock") is False


def test_a_full_disk_does_not_prevent_the_lock(tmp_path: Path):
    """Only the name of the holder is missing."""
    path = tmp_path / "ledger.lock"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        held = Lock.take(path, ME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(LedgerError, match="is held by another process"):
        Lock.take(path, ME)
    held.release()


def test_checking_the_lock_does_not_block_takers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asking = os.open(tmp_path / "x.lock", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(lock.time, "sleep", lambda _: os.close(asking))
    Lock.take(tmp_path / "x.lock", ME).release()


def test_a_file_system_without_locks_is_not_reported_as_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(LedgerError, match=r"its file system has no locks; .*\[storage\] ledger"):
        lock.Lock.take(tmp_path / "ledger.lock", ME)
