"""Benchmark of a worker: memory over many rollouts, CPU per turn, sleeping trials, and deaths.

The churn: rollouts of 45 turns, four at once on one worker, each turn adding an image of 200 KB
to the history, which every request carries in full. The policy is a script in another process. The
agent runs in the worker, on both sides, and its memory and CPU are counted; the row of the agent
alone, which calls the policy directly, shows its share. In the row with a separate agent it is a
process of its own, as agents in sandboxes are. Memory is the kernel's figure for the worker's
process: the peak is exact, and the idle figure is taken after it had time to trim.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway_sides import upstream
from workers_environment import BenchOptions
from workers_sides import VERIFIERS, Churn, Side, ours, verifiers
from workers_small import (
    Deaths,
    Sleepers,
    SmallTurns,
    deaths,
    sleepers,
    small_turns,
)

BLOCK = 16
"""Rollouts between two measurements of the idle worker."""
REST = 12.0
"""Seconds: a worker trims its memory every ten."""
CPU_AIM, PEAK_AIM, REST_AIM, SLOPE_AIM = 10.0, 40.0, 15.0, 0.1
SMALL_AIM, LAG_AIM, NOTICED_AIM = 1.0, 50.0, 2.0

OURS, NO_GC, APART, ALONE = "ours", "ours, no gc", "ours, agent apart", "agent alone"
OTHERS, OTHERS_NO_GC = f"verifiers {VERIFIERS}", f"verifiers {VERIFIERS}, no gc"
USUAL = (OURS, NO_GC, APART, ALONE, OTHERS)
Start = Callable[..., AbstractAsyncContextManager[Side]]
SIDES: dict[str, Start] = {
    OURS: ours,
    NO_GC: partial(ours, collects=False),
    APART: partial(ours, word="apart"),
    ALONE: partial(ours, word="alone"),
    OTHERS: verifiers,
    OTHERS_NO_GC: partial(verifiers, collects=False),
}
AIMED = (OURS, NO_GC, APART)


@dataclass(slots=True)
class Figures:
    """Measurements of a worker after a number of rollouts, in megabytes and seconds."""

    base: float
    rollouts: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    peaks: list[float] = field(default_factory=list)
    rests: dict[int, float] = field(default_factory=dict)
    at_ends: list[float] = field(default_factory=list)
    """Memory at the end of each rollout, while the others run."""

    @property
    def peak(self) -> float:
        return max(self.peaks)

    @property
    def rest(self) -> float:
        return next(reversed(self.rests.values()))

    @property
    def slope(self) -> float | None:
        """Growth of idle memory per rollout, in megabytes. The first value includes imports."""
        if len(self.rests) < 2:
            return None
        return statistics.linear_regression(list(self.rests), list(self.rests.values())).slope


async def measure(side: Side, blocks: int, block: int) -> Figures:
    process = side.process
    process.settle()
    found = Figures(process.rss)
    for _ in range(blocks):
        process.forget_peak()
        cpu, began = process.cpu, time.perf_counter()
        await side.run(block, lambda: found.at_ends.append(process.rss))
        found.seconds += time.perf_counter() - began
        found.cpu += process.cpu - cpu
        found.rollouts += block
        found.peaks.append(process.peak)
        await asyncio.sleep(REST)
        found.rests[found.rollouts] = process.rss
    return found


def show(console: Console, results: dict[str, Figures], churn: Churn) -> None:
    table = Table("churn", box=None, pad_edge=False)
    headings = ("rollouts", "base MB", "peak", "above", "resting", "above")
    for heading in (*headings, "turns/s", "CPU ms/turn"):
        table.add_column(heading, justify="right")
    for name, found in results.items():
        turns = found.rollouts * churn.turns
        table.add_row(
            *(name, str(found.rollouts), f"{found.base:.0f}"),
            *(f"{found.peak:.0f}", f"{found.peak - found.base:+.0f}"),
            *(f"{found.rest:.0f}", f"{found.rest - found.base:+.0f}"),
            *(f"{turns / found.seconds:.1f}", f"{1000 * found.cpu / turns:.1f}"),
        )
    live = f"≤ +{churn.live_mb + PEAK_AIM:.0f}"
    table.add_row("aim", "", "", "", live, "", f"≤ +{REST_AIM:.0f}", "", f"≤ {CPU_AIM:.0f}")
    console.print(table)


def show_by_count(console: Console, results: dict[str, Figures]) -> None:
    counts = sorted({count for found in results.values() for count in found.rests})
    table = Table("MB by rollouts", box=None, pad_edge=False)
    ends_of = ("at ends of first 8", "of last 8")
    for heading in ("at rest after 0", *map(str, counts), "MB/rollout", *ends_of):
        table.add_column(heading, justify="right")
    for name, found in results.items():
        rests = [f"{found.rests[n]:.1f}" if n in found.rests else "" for n in counts]
        slope = "" if found.slope is None else f"{found.slope:+.3f}"
        ends = (statistics.mean(part) for part in (found.at_ends[:8], found.at_ends[-8:]))
        table.add_row(name, f"{found.base:.1f}", *rests, slope, *(f"{end:.0f}" for end in ends))
    console.print(table)


def aims(results: dict[str, Figures], churn: Churn) -> Iterable[str]:
    for name in AIMED:
        if (found := results.get(name)) is None:
            continue
        turns, most = found.rollouts * churn.turns, churn.live_mb + PEAK_AIM
        yield aim(f"{name}: peak above base, MB", found.peak - found.base, most)
        yield aim(f"{name}: at rest above base, MB", found.rest - found.base, REST_AIM)
        yield aim(f"{name}: CPU a turn, ms", 1000 * found.cpu / turns, CPU_AIM)
        if found.slope is not None:
            yield aim(f"{name}: MB more with each rollout", found.slope, SLOPE_AIM)


def small_aims(small: SmallTurns) -> Iterable[str]:
    yield aim("a turn of 1 KB, CPU ms", small.whole, SMALL_AIM)
    yield (
        f"      worker {small.worker:.2f}, of which the agent {small.agent:.2f}; "
        f"supervisor and ledger {small.controller:.2f}; {small.turns:,} turns"
    )


def sleep_aims(found: Sleepers) -> Iterable[str]:
    late, starting = found.asleep, found.starting
    yield aim(f"{found.trials:,} sleeping trials: loop lag p99, ms", late["p99"], LAG_AIM)
    yield (
        f"      worst {late['worst']:.1f}; while all of them start p99 {starting['p99']:.1f}, "
        f"worst {starting['worst']:.1f}; {found.more:+.1f} MB"
    )


def death_aims(found: Deaths) -> Iterable[str]:
    what = f"kill -9: all {found.orders} that waited answered as lost, s"
    yield aim(what, found.noticed, NOTICED_AIM)
    yield (
        f"      run again on another worker after {found.again:.2f} s; "
        f"a failed start is reported, with the last output, after {found.reported:.2f} s"
    )


def aim(what: str, value: float, most: float) -> str:
    return f"{'pass' if value <= most else 'MISS'}  {what}: {value:.2f} (≤ {most:g})"


@asynccontextmanager
async def fresh() -> AsyncIterator[BenchOptions]:
    """A new policy, and a folder for written files."""
    process, port = upstream()
    try:
        with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as made:
            yield BenchOptions(f"http://127.0.0.1:{port}", made)
    finally:
        process.stop()


async def run_churn(
    names: Iterable[str], blocks: int, block: int, console: Console
) -> dict[str, Figures]:
    results: dict[str, Figures] = {}
    churn = Churn()
    for name in names:
        async with fresh() as options:
            with console.status(f"churn, {name}"):
                try:
                    async with SIDES[name](options.policy, Path(options.folder), churn) as side:
                        results[name] = await measure(side, 1 if name == ALONE else blocks, block)
                except OSError as problem:
                    console.print(f"{name}: left out, {problem}")
    return results


async def run_small(console: Console, *, quick: bool) -> list[str]:
    told: list[str] = []
    with console.status("small turns, sleepers, deaths"):
        async with fresh() as options:
            told += small_aims(await small_turns(options, 3 if quick else 10))
        async with fresh() as options:
            told += sleep_aims(await sleepers(options, 1000, 15.0 if quick else 30.0))
        async with fresh() as options:
            told += death_aims(await deaths(options, 16))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--side", action="append", choices=SIDES)
    parser.add_argument("--only", choices=("churn", "small"))
    parser.add_argument("--quick", action="store_true", help="a minute: 8 rollouts, ours alone")
    options = parser.parse_args()
    console = Console(width=150)
    logging.getLogger("plimsoll").setLevel(logging.ERROR)  # deaths are measured here
    names = options.side or ([OURS] if options.quick else USUAL)
    block = 8 if options.quick else min(BLOCK, options.rollouts)
    blocks = 1 if options.quick else options.rollouts // block
    told: list[str] = []
    if options.only != "small":
        results = asyncio.run(run_churn(names, blocks, block, console))
        show(console, results, Churn())
        show_by_count(console, results)
        told += aims(results, Churn())
    if options.only != "churn":
        told += asyncio.run(run_small(console, quick=options.quick))
    for line in told:
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
