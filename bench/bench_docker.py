"""Benchmark of trials on Docker: Plimsoll, plain calls of the Docker API, and Harbor.

Eight trivial tasks, solved by the oracle. Each round measures every side once, so that a busy
machine affects them equally; compare ratios. The plain script makes only the calls that every trial
needs: create, start, three commands, remove. Harbor is measured if it is installed, with the
`docker` command and Compose V2.
"""

import argparse
import asyncio
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from docker_sides import (
    DaemonProcesses,
    Harbor,
    PlainScript,
    Plimsoll,
    Sample,
    Side,
    harbor_problem,
    write_tasks,
)
from plimsoll.sandboxes.pool.stats import PoolStats, Quantiles

CONCURRENCY = (1, 4, 8)
HIGHEST = max(CONCURRENCY)
LEASES = 20

COLD, REUSED = "plain API calls", "plain API calls, one container"
NONE, FRESH, RESET = "plimsoll, no pool", "plimsoll, pool fresh", "plimsoll, pool reset"
HARBOR, HARBOR_NO_GRACE = "harbor", "harbor, stop grace 0"
POOLS = {NONE: "none", FRESH: "fresh", RESET: "reset"}
NAN = float("nan")


def batches(side: str, at_once: int) -> int:
    """The number of repetitions of the tasks in one measurement.

    It is large enough that the cost of the first and the last containers is small.
    """
    if side in (HARBOR, HARBOR_NO_GRACE):
        return 1
    return {1: 2, 4: 4, 8: 6}[at_once] * (4 if side in (REUSED, RESET) else 1)


@dataclass(slots=True)
class Results:
    """All measurements."""

    samples: dict[str, dict[int, list[Sample]]] = field(default_factory=dict)
    """By side and number of concurrent trials."""
    idle: dict[str, list[PoolStats]] = field(default_factory=dict)
    """Pool statistics of leases taken one by one."""
    busy: dict[str, list[PoolStats]] = field(default_factory=dict)
    """Pool statistics of short trials at the highest concurrency."""

    def add(self, side: str, at_once: int, sample: Sample) -> None:
        self.samples.setdefault(side, {}).setdefault(at_once, []).append(sample)

    def add_busy(self, side: str) -> Callable[[int, PoolStats], None]:
        def add(at_once: int, stats: PoolStats) -> None:
            if at_once == HIGHEST:
                self.busy.setdefault(side, []).append(stats)

        return add

    def median(self, side: str, at_once: int, figure: str) -> float:
        samples = self.samples.get(side, {}).get(at_once, [])
        return statistics.median(getattr(s, figure) for s in samples) if samples else NAN

    @property
    def best_of_harbor(self) -> float:
        """Trials per minute at the highest concurrency."""
        rates = [self.median(side, HIGHEST, "per_minute") for side in (HARBOR, HARBOR_NO_GRACE)]
        return max((rate for rate in rates if not math.isnan(rate)), default=NAN)


def lease_times(rounds: list[PoolStats], kind: str) -> tuple[float, float]:
    """Lease times in milliseconds: the median of the rounds' p50, and the worst p99."""
    figures: list[Quantiles | None] = [getattr(stats, kind) for stats in rounds]
    found = [one for one in figures if one is not None]
    if not found:
        return NAN, NAN
    p50 = statistics.median(one.p50 for one in found)
    return p50 * 1000, max(one.p99 for one in found) * 1000


def worst(values: Iterable[float]) -> float:
    """The maximum; NaN if a value is NaN."""
    found = list(values)
    return NAN if any(math.isnan(value) for value in found) else max(found)


async def measure(
    sides: dict[str, Side], plimsoll: Plimsoll, results: Results, rounds: int, slow_rounds: int
) -> None:
    for number in range(rounds):
        for at_once in CONCURRENCY:
            for name, side in sides.items():
                if name not in (HARBOR, HARBOR_NO_GRACE) or number < slow_rounds:
                    results.add(name, at_once, await side(batches(name, at_once), at_once))
        for name, pool in POOLS.items():
            results.idle.setdefault(name, []).append(await plimsoll.leases(pool, LEASES))


def show_trials(console: Console, results: Results) -> None:
    table = Table("side", box=None, pad_edge=False)
    for at_once in CONCURRENCY:
        table.add_column(f"{at_once} at once:\ntrials/min", justify="right")
        table.add_column("CPU ms\nper trial", justify="right")
        table.add_column("daemon CPU\nms per trial", justify="right")
    table.add_column(f"{HIGHEST} at once:\n× plain", justify="right")
    table.add_column("\n× harbor", justify="right")
    plain = results.median(COLD, HIGHEST, "per_minute")
    for name in results.samples:
        cells: list[str] = []
        for at_once in CONCURRENCY:
            figures = ("per_minute", "cpu_ms", "daemon_cpu_ms")
            cells += [f"{results.median(name, at_once, figure):,.0f}" for figure in figures]
        rate = results.median(name, HIGHEST, "per_minute")
        table.add_row(name, *cells, f"{rate / plain:.2f}", f"{rate / results.best_of_harbor:.1f}")
    console.print(table)


def show_leases(console: Console, results: Results) -> None:
    table = Table("leases, ms", box=None, pad_edge=False)
    for heading in ("cold p50", "p99", "warm p50", "p99"):
        table.add_column(heading, justify="right")
    for kind, rounds in (
        ("one by one", results.idle),
        (f"{HIGHEST} at once", results.busy),
    ):
        for name in POOLS:
            cells = [
                *lease_times(rounds[name], "wait_cold"),
                *lease_times(rounds[name], "wait_warm"),
            ]
            shown = ["-" if math.isnan(one) else f"{one:,.1f}" for one in cells]
            table.add_row(f"{name}, {kind}", *shown)
    console.print(table)


@dataclass(frozen=True, slots=True)
class Target:
    """A target and the measured value."""

    name: str
    value: float
    bound: float
    at_least: bool

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        if math.isnan(self.value):
            return f"not measured: {self.name} ({sign} {self.bound:g})"
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        verdict = "pass" if met else "MISS"
        return f"{verdict}  {self.name}: {self.value:.2f} ({sign} {self.bound:g})"


def targets(results: Results) -> list[Target]:
    fresh = results.median(NONE, HIGHEST, "per_minute")
    leases = [results.idle[name] for name in (FRESH, RESET)]
    warm = worst(lease_times(rounds, "wait_warm")[0] for rounds in leases)
    cpu = worst(results.median(name, HIGHEST, "cpu_ms") for name in POOLS)
    plain = results.median(COLD, HIGHEST, "per_minute")
    return [
        Target("no pool, relative to the plain script", fresh / plain, 0.7, True),
        Target(
            "no pool, relative to Harbor's better side", fresh / results.best_of_harbor, 6, True
        ),
        Target("pool reset, trials/min", results.median(RESET, HIGHEST, "per_minute"), 400, True),
        Target("warm lease p50 of the slower pool, ms", warm, 50, False),
        Target("CPU per trial of Plimsoll's worst side, ms", cpu, 50, False),
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--host", help="the daemon's unix socket, as in DOCKER_HOST")
    parser.add_argument("--harbor", metavar="PROGRAM", default="harbor")
    parser.add_argument(
        "--harbor-rounds",
        type=int,
        default=1,
        help="rounds that include Harbor, which takes minutes",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    url = options.host or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    console, results = Console(width=150), Results()
    daemon = DaemonProcesses(url)
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        root = Path(folder)
        write_tasks(root / "tasks")
        plimsoll = Plimsoll(root, url, daemon)
        connector = aiohttp.UnixConnector(url.removeprefix("unix://"), limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            plain = PlainScript(session, daemon)
            sides: dict[str, Side] = {COLD: plain.cold, REUSED: plain.reused}
            for name, pool in POOLS.items():
                sides[name] = plimsoll.side(pool, results.add_busy(name))
            if (reason := harbor_problem(options.harbor)) is None:
                harbor = Harbor(options.harbor, root, url, daemon)
                console.print(f"harbor {harbor.version}")
                sides[HARBOR] = harbor.side()
                sides[HARBOR_NO_GRACE] = harbor.side("--extra-docker-compose", "grace.yaml")
            else:
                console.print(f"harbor: not measured, {reason}")
            await measure(sides, plimsoll, results, options.rounds, options.harbor_rounds)
    show_trials(console, results)
    console.print()
    show_leases(console, results)
    console.print()
    for target in targets(results):
        console.print(str(target))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))


if __name__ == "__main__":
    asyncio.run(main())
