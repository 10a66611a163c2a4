"""How fast trials on Docker are, beside plain calls of the engine's API and beside Harbor.

Eight trivial tasks, solved by the oracle. Each round measures every side once, so that a busy
machine disturbs them alike; ratios count. The plain script does what no trial can do without:
create, start, three commands, remove. Harbor is measured where it is installed, with the `docker`
command and Compose V2.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from docker_sides import (
    EngineProcesses,
    Harbor,
    PlainScript,
    Plimsoll,
    Sample,
    Side,
    why_no_harbor,
    write_tasks,
)
from plimsoll.sandboxes.pool.stats import Figures, PoolStats

AT_ONCE = (1, 4, 8)
BATCHES = {1: 1, 4: 3, 8: 6}
"""How often the tasks are tried in one measurement, by how many at once."""

COLD, REUSED = "plain API calls", "plain API calls, one container"
NONE, FRESH, RESET = "plimsoll, no pool", "plimsoll, pool fresh", "plimsoll, pool reset"
HARBOR, HARBOR_NO_GRACE = "harbor", "harbor, stop grace 0"
POOLS = {NONE: "none", FRESH: "fresh", RESET: "reset"}


@dataclass(slots=True)
class Results:
    """Every measurement, by side and by how many trials ran at once."""

    samples: dict[str, dict[int, list[Sample]]] = field(default_factory=dict)
    leases: dict[str, list[PoolStats]] = field(default_factory=dict)
    """What pools said of their leases when most trials ran at once."""

    def add(self, side: str, at_once: int, sample: Sample) -> None:
        self.samples.setdefault(side, {}).setdefault(at_once, []).append(sample)

    def add_stats(self, side: str) -> Callable[[int, PoolStats], None]:
        def add(at_once: int, stats: PoolStats) -> None:
            if at_once == max(AT_ONCE):
                self.leases.setdefault(side, []).append(stats)

        return add

    def median(self, side: str, at_once: int, figure: str) -> float:
        samples = self.samples.get(side, {}).get(at_once, [])
        return statistics.median(getattr(s, figure) for s in samples) if samples else float("nan")

    def waits(self, side: str, kind: str) -> tuple[float, float] | None:
        """Milliseconds that leases took: the median of the rounds' p50, the worst p99."""
        said: list[Figures | None] = [getattr(stats, kind) for stats in self.leases.get(side, [])]
        found = [figures for figures in said if figures is not None]
        if not found:
            return None
        p50 = statistics.median(figures.p50 for figures in found)
        return p50 * 1000, max(figures.p99 for figures in found) * 1000


async def measure(sides: dict[str, Side], results: Results, rounds: int, slow_rounds: int) -> None:
    for number in range(rounds):
        for at_once in AT_ONCE:
            for name, side in sides.items():
                slow = name in (HARBOR, HARBOR_NO_GRACE)
                if slow and number >= slow_rounds:
                    continue
                sample = await side(1 if slow else BATCHES[at_once], at_once)
                results.add(name, at_once, sample)


def show(console: Console, results: Results) -> None:
    table = Table("side", box=None, pad_edge=False)
    for at_once in AT_ONCE:
        table.add_column(f"{at_once} at once:\ntrials/min", justify="right")
        table.add_column("CPU ms\na trial", justify="right")
        table.add_column("engine's", justify="right")
    most = max(AT_ONCE)
    table.add_column(f"{most} at once:\n× plain", justify="right")
    table.add_column("\n× harbor", justify="right")
    plain, harbor = results.median(COLD, most, "per_minute"), best_of_harbor(results)
    for name in results.samples:
        cells: list[str] = []
        for at_once in AT_ONCE:
            figures = ("per_minute", "cpu_ms", "engine_cpu_ms")
            cells += [f"{results.median(name, at_once, figure):,.0f}" for figure in figures]
        rate = results.median(name, most, "per_minute")
        table.add_row(name, *cells, f"{rate / plain:.2f}", f"{rate / harbor:.1f}")
    console.print(table)
    for name in POOLS:
        for kind, word in (("wait_cold", "cold"), ("wait_warm", "warm")):
            if (waits := results.waits(name, kind)) is not None:
                p50, p99 = waits
                console.print(
                    f"{name}, {most} at once: {word} lease p50 {p50:.1f} ms, p99 {p99:.1f} ms"
                )


def best_of_harbor(results: Results) -> float:
    """Trials a minute when most run at once, its stop grace set to 0 or not."""
    rates = [results.median(side, max(AT_ONCE), "per_minute") for side in (HARBOR, HARBOR_NO_GRACE)]
    return max(rates)


@dataclass(frozen=True, slots=True)
class Aim:
    """What was set out to be reached, and what was."""

    what: str
    value: float
    bound: float
    at_least: bool

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.value != self.value:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        verdict = {True: "met   ", False: "MISSED", None: "not measured"}[self.met]
        sign = "≥" if self.at_least else "≤"
        return f"{verdict}  {self.what}: {self.value:.2f} ({sign} {self.bound:g})"


def aims(results: Results) -> list[Aim]:
    most = max(AT_ONCE)
    fresh = results.median(NONE, most, "per_minute")
    warm = results.waits(RESET, "wait_warm") or (float("nan"),)
    cpu = max(results.median(name, most, "cpu_ms") for name in POOLS)
    plain = results.median(COLD, most, "per_minute")
    return [
        Aim("no pool, beside the plain script", fresh / plain, 0.7, True),
        Aim("no pool, beside Harbor's better figure", fresh / best_of_harbor(results), 6, True),
        Aim("pool reset, trials/min", results.median(RESET, most, "per_minute"), 400, True),
        Aim("warm lease, p50 ms", warm[0], 50, False),
        Aim("CPU of Plimsoll, ms a trial, the most of its sides", cpu, 50, False),
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--host", help="the engine's unix socket, as in DOCKER_HOST")
    parser.add_argument("--harbor", metavar="PROGRAM", default="harbor")
    parser.add_argument("--harbor-rounds", type=int, default=1, help="it takes minutes a round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    url = options.host or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    console, results = Console(width=150), Results()
    engine = EngineProcesses(url)
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        root = Path(folder)
        write_tasks(root / "tasks")
        plimsoll = Plimsoll(root, url, engine)
        connector = aiohttp.UnixConnector(url.removeprefix("unix://"), limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            plain = PlainScript(session, engine)
            sides: dict[str, Side] = {COLD: plain.cold, REUSED: plain.reused}
            for name, pool in POOLS.items():
                sides[name] = plimsoll.side(pool, results.add_stats(name))
            if (reason := why_no_harbor(options.harbor)) is None:
                harbor = Harbor(options.harbor, root, url, engine)
                sides[HARBOR] = harbor.side()
                sides[HARBOR_NO_GRACE] = harbor.side("--extra-docker-compose", "grace.yaml")
            else:
                console.print(f"harbor: not measured, {reason}")
            await measure(sides, results, options.rounds, options.harbor_rounds)
    show(console, results)
    for aim in aims(results):
        console.print(str(aim))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))


if __name__ == "__main__":
    asyncio.run(main())
