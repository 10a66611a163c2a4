"""Benchmark of the ledger: events written, decisions, opening a long journal, and memory.

Also measures a turn of the scheduler with many trials in flight.

make bench-ledger
python bench/bench_ledger.py --events 1000000
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

from plimsoll.core.endings import Ending
from plimsoll.core.ids import Owner
from plimsoll.ledger.accounts import Accounts
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.events import Event, Segment
from plimsoll.ledger.journal import journal, snapshot
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.journal.location import FILE
from plimsoll.ledger.ledger import Ledger, read_books
from plimsoll.ledger.recovery import subject_of
from plimsoll.ledger.rules.batching import Batch
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause, Graded, Void
from scheduler_turn import Turn, scheduler_turn

ORDER = DataOrder([f"task-{n}" for n in range(1000)])
GOOD = Graded(1.0, Ending.SUBMITTED)


class EmptyHistory:
    """An empty history, for runs that never read it."""

    def about(self, subject: str) -> list[Event]:  # noqa: ARG002
        return []


def accounts(settings: Settings, sink: Callable[[Event], None]) -> Accounts:
    made = Accounts(Books(), sink, EmptyHistory(), time.time)
    made.configure(settings)
    return made


def step(run: Accounts) -> None:
    """Admit groups up to the limit, finish all of them, train on one batch."""
    run.admit(ORDER)
    for ticket in run.waiting():
        run.start(ticket, "worker-1")
        run.finish(ticket, GOOD, 12.5, [Segment(run.books.version, 900)])
    choice = run.choose()
    assert isinstance(choice, Batch)
    run.consume(choice)
    run.commit()


@contextlib.contextmanager
def every_event_durable() -> Generator[None]:
    """Sync at every write, not only at the beginning and the end of a step."""
    usual = journal.is_durable
    journal.is_durable = lambda _: True
    try:
        yield
    finally:
        journal.is_durable = usual


async def written_events(folder: Path, callers: int, groups: int) -> float:
    """Events per second through the asyncio interface. Each caller waits for its event."""
    settings = Settings(batch_groups=groups, max_running=groups * 8, depth=0, max_staleness=0)
    async with Ledger(folder, settings, Owner("bench", os.getpid(), ""), time.time) as ledger:
        await ledger.admit(ORDER)
        tickets = iter(ledger.accounts.waiting())
        before, began = ledger.position, time.perf_counter()

        async def work() -> None:
            for ticket in tickets:
                await ledger.start(ticket, "worker-1")
                await ledger.finish(ticket, GOOD, 12.5)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(work())
        choice = ledger.choose()
        assert isinstance(choice, Batch)
        await ledger.consume(choice)
        await ledger.commit()
        return (ledger.position - before) / (time.perf_counter() - began)


async def steps_a_second(folder: Path, steps: int) -> float:
    """Steps per second: consume and commit, each synced to disk before the next."""
    settings = Settings(
        batch_groups=1, max_running=steps, depth=steps, max_staleness=steps, group_size=1
    )
    async with Ledger(folder, settings, Owner("bench", os.getpid(), ""), time.time) as ledger:
        await ledger.admit(ORDER)
        async with asyncio.TaskGroup() as tasks:
            for ticket in ledger.accounts.waiting():
                tasks.create_task(ledger.finish(ticket, GOOD, 1.0))
        began = time.perf_counter()
        for _ in range(steps):
            choice = ledger.choose()
            assert isinstance(choice, Batch)
            await ledger.consume(choice)
            await ledger.commit()
        return 2 * steps / (time.perf_counter() - began)


def decisions(batch: int, depth: int) -> dict[str, float]:
    """Median milliseconds of each decision with (τ+1)·B live groups."""
    settings = Settings(
        batch_groups=batch,
        max_running=batch * (depth + 1),
        depth=depth,
        max_staleness=depth,
        group_size=1,
        group_policy="void",
    )
    run = accounts(settings, lambda _: None)
    run.admit(ORDER)
    for ticket in run.waiting()[batch // 2 :]:
        run.start(ticket, "w")
        run.finish(ticket, GOOD, 1.0)
    took: dict[str, list[float]] = {"choose": [], "admit": []}
    for ticket in run.waiting()[:200]:
        began = time.perf_counter()
        run.choose()
        took["choose"].append(time.perf_counter() - began)
        run.void(ticket, Void(Cause.TASK, "bench"))
        began = time.perf_counter()
        run.admit(ORDER)
        took["admit"].append(time.perf_counter() - began)
    return {name: 1000 * statistics.median(seconds) for name, seconds in took.items()}


def long_journal(path: Path, events: int) -> tuple[int, float]:
    """Write a journal of `events` events in bulk. Returns the count and events per second."""
    written: list[tuple[Event, str]] = []
    settings = Settings(batch_groups=64, max_running=1024, depth=1, max_staleness=1)
    run = accounts(settings, lambda event: written.append((event, subject_of(event))))
    file = Journal.create(path)
    began = time.perf_counter()
    while file.seq + len(written) < events:
        step(run)
        if len(written) > 50_000:
            file.append(written)
            written.clear()
    file.append(written)
    rate = file.seq / (time.perf_counter() - began)
    count = file.seq
    file.keep_snapshot(snapshot.dump(run.books))
    file.close()
    return count, rate


def opening(path: Path, *, from_the_start: bool) -> float:
    began = time.perf_counter()
    file = Journal.open(path)
    read_books(file, from_the_start=from_the_start)
    file.close()
    return time.perf_counter() - began


def memory(groups: int) -> float:
    """Resident megabytes of a process after this many groups have been consumed."""
    read, write = os.pipe()
    if not (child := os.fork()):
        settings = Settings(
            batch_groups=64, max_running=256, depth=1, max_staleness=1, group_size=2
        )
        run = accounts(settings, lambda _: None)
        while run.books.tally.consumed < groups:
            step(run)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        os.write(write, str(pages * os.sysconf("SC_PAGE_SIZE") / 1e6).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return float(os.read(read, 100))


def scheduler_turns(folder: Path, turns: int) -> None:
    """Measure the same turns with 1,000 and with 10,000 trials in flight."""
    found: list[Turn] = []
    for running in (1_000, 10_000):
        run_folder = folder / f"scheduler-{running}"
        run_folder.mkdir()
        one = asyncio.run(scheduler_turn(run_folder, running, turns))
        found.append(one)
        figure = f"{one.median:.2f} ms, mean {one.mean:.2f}"
        line(f"scheduler turn, {running:,} running: CPU, median", figure)
    line(
        "the same, 10,000 relative to 1,000",
        f"{found[1].median / found[0].median:.1f} ×",
        "about 1 ×",
    )


def line(title: str, figure: str, target: str = "") -> None:
    print(f"{title:<54}{figure:>22}{target:>16}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="events in the long journal")
    parser.add_argument("--folder", type=Path, help="folder for the journals, e.g. on a real disk")
    args = parser.parse_args()
    line("", "measured", "target")
    for groups in (10_000, 100_000):
        line(f"memory after {groups:,} consumed groups", f"{memory(groups):.1f} MB")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for part in ("many", "durable", "steps"):
            (folder / part).mkdir()
        rate = asyncio.run(written_events(folder / "many", 512, 4000))
        line("events written by 512 callers, each awaited", f"{rate:,.0f} /s")
        with every_event_durable():
            rate = asyncio.run(written_events(folder / "durable", 512, 4000))
        line("the same, each synced to disk", f"{rate:,.0f} /s", "≥ 5,000 /s")
        scheduler_turns(folder, 300)
        rate = asyncio.run(steps_a_second(folder / "steps", 200))
        line("consume and commit, one caller, each synced to disk", f"{rate:,.0f} /s")
        for batch, depth in ((16, 624), (1000, 9), (5000, 1)):
            for name, milliseconds in decisions(batch, depth).items():
                title = f"{name}, 10,000 live groups, B {batch:,}"
                line(title, f"{milliseconds:.3f} ms", "< 1 ms")
        count, rate = long_journal(folder / FILE, args.events)
        line(f"a journal of {count:,} events, written in bulk", f"{rate:,.0f} /s")
        whole = opening(folder / FILE, from_the_start=False)
        line("opening it with its snapshot", f"{whole:.2f} s", "< 5 s")
        whole = opening(folder / FILE, from_the_start=True)
        line("opening it from its first event on", f"{whole:.2f} s")


if __name__ == "__main__":
    main()
