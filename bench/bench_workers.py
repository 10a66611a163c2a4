"""Benchmark of a worker: memory over many rollouts, CPU per turn, sleeping trials, and deaths.

The churn: rollouts of 45 turns, four at once on one worker. Each turn adds an image of 200 KB to
the history, and every request carries the whole history. The policy is a script in another process.
The agent runs in the worker, on both sides, and its memory and CPU are counted; in the row "agent
alone" it calls the policy directly, which shows its share. In the row "separate agent" it is a
separate process, as agents in sandboxes are. Memory is the kernel's figure for the process of the
worker: the peak is exact, and the idle figure is taken after the worker had time to trim.
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
IDLE_WAIT = 12.0
"""Seconds before idle memory is measured: a worker trims its memory every ten seconds."""
CPU_TARGET, PEAK_TARGET, IDLE_TARGET, SLOPE_TARGET = 10.0, 40.0, 15.0, 0.1
SMALL_TARGET, LAG_TARGET, NOTICED_TARGET = 1.0, 50.0, 2.0

OURS, NO_GC, APART, ALONE = "ours", "ours, no gc", "ours, separate agent", "agent alone"
OTHERS, OTHERS_NO_GC = f"verifiers {VERIFIERS}", f"verifiers {VERIFIERS}, no gc"
USUAL = (OURS, NO_GC, APART, ALONE, OTHERS)
Start = Callable[..., AbstractAsyncContextManager[Side]]
SIDES: dict[str, Start] = {
    OURS: ours,
    NO_GC: partial(ours, collects=False),
    APART: partial(ours, command="apart"),
    ALONE: partial(ours, command="alone"),
    OTHERS: verifiers,
    OTHERS_NO_GC: partial(verifiers, collects=False),
}
TARGET_SIDES = (OURS, NO_GC, APART)


@dataclass(slots=True)
class Figures:
    """Measurements of a worker after a number of rollouts, in megabytes and seconds."""

    base: float
    rollouts: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    peaks: list[float] = field(default_factory=list)
    idle_by_count: dict[int, float] = field(default_factory=dict)
    at_ends: list[float] = field(default_factory=list)
    """Memory at the end of each rollout, while the others run."""

    @property
    def peak(self) -> float:
        return max(self.peaks)

    @property
    def idle(self) -> float:
        return next(reversed(self.idle_by_count.values()))

    @property
    def slope(self) -> float | None:
        """Growth of idle memory per rollout, in megabytes. The first value includes imports."""
        if len(self.idle_by_count) < 2:
            return None
        return statistics.linear_regression(
            list(self.idle_by_count), list(self.idle_by_count.values())
        ).slope


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
        await asyncio.sleep(IDLE_WAIT)
        found.idle_by_count[found.rollouts] = process.rss
    return found


def show(console: Console, results: dict[str, Figures], churn: Churn) -> None:
    table = Table("churn", box=None, pad_edge=False)
    headings = ("rollouts", "base MB", "peak", "above base", "idle", "above base")
    for heading in (*headings, "turns/s", "CPU ms/turn"):
        table.add_column(heading, justify="right")
    for name, found in results.items():
        turns = found.rollouts * churn.turns
        table.add_row(
            *(name, str(found.rollouts), f"{found.base:.0f}"),
            *(f"{found.peak:.0f}", f"{found.peak - found.base:+.0f}"),
            *(f"{found.idle:.0f}", f"{found.idle - found.base:+.0f}"),
            *(f"{turns / found.seconds:.1f}", f"{1000 * found.cpu / turns:.1f}"),
        )
    live = f"≤ +{churn.live_mb + PEAK_TARGET:.0f}"
    table.add_row(
        "target", "", "", "", live, "", f"≤ +{IDLE_TARGET:.0f}", "", f"≤ {CPU_TARGET:.0f}"
    )
    console.print(table)


def show_by_count(console: Console, results: dict[str, Figures]) -> None:
    counts = sorted({count for found in results.values() for count in found.idle_by_count})
    table = Table("MB by rollouts", box=None, pad_edge=False)
    ends_of = ("at ends of first 8", "of last 8")
    for heading in ("idle after 0", *map(str, counts), "MB/rollout", *ends_of):
        table.add_column(heading, justify="right")
    for name, found in results.items():
        idle_by_count = [
            f"{found.idle_by_count[n]:.1f}" if n in found.idle_by_count else "" for n in counts
        ]
        slope = "" if found.slope is None else f"{found.slope:+.3f}"
        ends = (statistics.mean(part) for part in (found.at_ends[:8], found.at_ends[-8:]))
        table.add_row(
            name, f"{found.base:.1f}", *idle_by_count, slope, *(f"{end:.0f}" for end in ends)
        )
    console.print(table)


def targets(results: dict[str, Figures], churn: Churn) -> Iterable[str]:
    for name in TARGET_SIDES:
        if (found := results.get(name)) is None:
            continue
        turns, most = found.rollouts * churn.turns, churn.live_mb + PEAK_TARGET
        yield target(f"{name}: peak above base, MB", found.peak - found.base, most)
        yield target(f"{name}: idle memory above base, MB", found.idle - found.base, IDLE_TARGET)
        yield target(f"{name}: CPU per turn, ms", 1000 * found.cpu / turns, CPU_TARGET)
        if found.slope is not None:
            yield target(
                f"{name}: growth of idle memory per rollout, MB", found.slope, SLOPE_TARGET
            )


def small_targets(small: SmallTurns) -> Iterable[str]:
    yield target("a turn of 1 KB, CPU ms", small.whole, SMALL_TARGET)
    yield (
        f"      worker {small.worker:.2f}, of which the agent {small.agent:.2f}; "
        f"supervisor and ledger {small.controller:.2f}; {small.turns:,} turns"
    )


def sleep_targets(found: Sleepers) -> Iterable[str]:
    asleep, starting = found.asleep, found.starting
    yield target(f"{found.trials:,} sleeping trials: loop lag p99, ms", asleep["p99"], LAG_TARGET)
    yield (
        f"      worst {asleep['worst']:.1f}; while they start: p99 {starting['p99']:.1f}, "
        f"worst {starting['worst']:.1f}; {found.growth:+.1f} MB"
    )


def death_targets(found: Deaths) -> Iterable[str]:
    title = f"kill -9: all {found.orders} running trials void as lost, s"
    yield target(title, found.noticed, NOTICED_TARGET)
    yield (
        f"      all run again on another worker after {found.again:.2f} s; "
        f"a failed start is reported, with the last output, after {found.reported:.2f} s"
    )


def target(title: str, value: float, most: float) -> str:
    return f"{'pass' if value <= most else 'MISS'}  {title}: {value:.2f} (≤ {most:g})"


@asynccontextmanager
async def new_policy() -> AsyncIterator[BenchOptions]:
    """Start a new policy, with a folder for written files."""
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
        async with new_policy() as options:
            with console.status(f"churn, {name}"):
                try:
                    async with SIDES[name](options.policy, Path(options.folder), churn) as side:
                        results[name] = await measure(side, 1 if name == ALONE else blocks, block)
                except OSError as problem:
                    console.print(f"{name}: left out, {problem}")
    return results


async def run_small(console: Console, *, quick: bool) -> list[str]:
    lines: list[str] = []
    with console.status("small turns, sleepers, deaths"):
        async with new_policy() as options:
            lines += small_targets(await small_turns(options, 3 if quick else 10))
        async with new_policy() as options:
            lines += sleep_targets(await sleepers(options, 1000, 15.0 if quick else 30.0))
        async with new_policy() as options:
            lines += death_targets(await deaths(options, 16))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--side", action="append", choices=SIDES)
    parser.add_argument("--only", choices=("churn", "small"))
    parser.add_argument(
        "--quick", action="store_true", help="take about a minute: 8 rollouts, only ours"
    )
    options = parser.parse_args()
    console = Console(width=150)
    logging.getLogger("plimsoll").setLevel(logging.ERROR)  # worker deaths are expected
    names = options.side or ([OURS] if options.quick else USUAL)
    block = 8 if options.quick else min(BLOCK, options.rollouts)
    blocks = 1 if options.quick else options.rollouts // block
    lines: list[str] = []
    if options.only != "small":
        results = asyncio.run(run_churn(names, blocks, block, console))
        show(console, results, Churn())
        show_by_count(console, results)
        lines += targets(results, Churn())
    if options.only != "churn":
        lines += asyncio.run(run_small(console, quick=options.quick))
    for line in lines:
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
