"""Memory is trimmed in a thread; a worker above its limit reports that it is full."""

import ctypes
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from worker_client import marking_spec, ready_client

from plimsoll.workers.messages import Beat, Finished
from plimsoll.workers.worker.memory import MemoryTrimmer, find_trim, keep_freed


class Trim:
    """A trim that lasts until the test ends it."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.may_end.wait(10)

    def finish(self) -> None:
        """Let the trim end, and wait for its thread."""
        self.may_end.set()
        for thread in threading.enumerate():
            if thread.name == "memory-trimmer":
                thread.join()


def test_a_libc_without_malloc_trim_is_accepted():
    musl = cast(ctypes.CDLL, SimpleNamespace())
    assert find_trim(musl) is None
    trimmer = MemoryTrimmer(None, every=1, limit_mb=100)
    trimmer.attend(now=1, rss=50, ended=1)
    assert not trimmer.full
    trimmer.attend(now=2, rss=150, ended=1)
    assert trimmer.full


def test_trimming_runs_in_its_own_thread():
    trim = Trim()
    MemoryTrimmer(trim, every=0, limit_mb=None).attend(now=1, rss=50, ended=1)
    trim.finish()
    assert trim.threads == ["memory-trimmer"]


def test_trimming_is_skipped_while_the_last_one_still_runs():
    trim = Trim()
    trimmer = MemoryTrimmer(trim, every=1, limit_mb=None)
    for now in range(1, 6):
        trimmer.attend(now=now, rss=50, ended=now)
    trim.finish()
    assert len(trim.threads) == 1
    trimmer.attend(now=6, rss=50, ended=6)
    trim.finish()
    assert len(trim.threads) == 2


def test_nothing_is_trimmed_if_nothing_was_freed():
    trim = Trim()
    trim.may_end.set()
    trimmer = MemoryTrimmer(trim, every=1, limit_mb=None)
    trimmer.attend(now=1, rss=50, ended=1)
    trim.finish()
    trimmer.attend(now=3, rss=51, ended=1)
    trim.finish()
    assert len(trim.threads) == 1
    trimmer.attend(now=5, rss=80, ended=1)
    trim.finish()
    assert len(trim.threads) == 2, "memory has grown: long trials free bodies, too"


def test_memory_is_trimmed_before_a_worker_counts_as_full():
    trim = Trim()
    trimmer = MemoryTrimmer(trim, every=1000, limit_mb=100)
    trimmer.attend(now=1, rss=150, ended=0)
    trimmer.attend(now=2, rss=150, ended=0)
    assert not trimmer.full, "the trim still runs"
    trim.finish()
    trimmer.attend(now=3, rss=60, ended=0)
    assert not trimmer.full
    trimmer.attend(now=4, rss=150, ended=0)
    trim.finish()
    trimmer.attend(now=5, rss=150, ended=0)
    assert trimmer.full
    trimmer.attend(now=6, rss=60, ended=0)
    assert trimmer.full, "a worker that was full once is replaced"


FREEING = """
from plimsoll.workers.worker.memory import find_trim, rss_mb
before = rss_mb()
pieces = [bytes(4_000) for _ in range(20_000)]
held = rss_mb()
last = pieces[-1]  # at the top of the heap, which therefore does not shrink by itself
del pieces
trim = find_trim()
if trim is not None:
    trim()
    print(held - before, rss_mb() - before)
"""


def test_freed_memory_is_returned_to_the_system():
    # In a separate process: this one may have free memory from earlier tests.
    ran = subprocess.run(
        [sys.executable, "-c", FREEING], capture_output=True, text=True, check=True
    )
    if ran.stdout:
        held, left = map(float, ran.stdout.split())
        assert held > 60
        assert left < 30


async def test_a_worker_above_its_limit_reports_it_and_finishes_its_tickets(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path, memory_mb=200)) as client:
        client.order("slow", "sleep 6")
        beat = await client.receive(Beat)
        assert not beat.full and beat.rss_mb < 200
        client.order("leak", "leak 200")
        full = await client.receive(Beat, lambda beat: beat.full)
        assert full.rss_mb > 200
        await client.result("slow")


async def test_memory_does_not_grow_with_the_number_of_finished_tickets(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path, trim_seconds=0.1)) as client:

        async def churn(first: int, tickets: int) -> float:
            """Run tickets, four at once, with histories of up to 3 MB. Returns the idle memory."""
            for number in range(first, first + tickets):
                client.order(f"t{number}", "body 15")
                if number >= first + 4:
                    await client.receive(Finished)
            for _ in range(4):
                await client.receive(Finished)
            await client.listen(1.0)
            return min(beat.rss_mb for beat in client.beats[-3:])

        resting = await churn(0, 50)
        later = await churn(50, 300)
        print(f"resting {resting:.1f} MB after 50 tickets, {later:.1f} MB after 350")
        assert later < resting + 10


def test_a_libc_without_mallopt_is_accepted():
    keep_freed(cast(ctypes.CDLL, SimpleNamespace()))
