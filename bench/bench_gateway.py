"""The cost of the gateway, compared with no gateway, an aiohttp pass-through and LiteLLM's proxy.

Each round measures every side once in every case, so that load on the machine affects them alike.
The main figure is the CPU of the server process, which other load disturbs least; it is taken with
eight requests in flight, and latency with one, without queueing. Plimsoll has a session for each
conversation and writes every exchange to its trajectory. The cost of opening and ending a session,
mostly the file system's, is reported separately. Token ids and log probabilities of the upstream
are recorded and not forwarded, because the agents do not ask for them.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway_cases import CASES, Case
from gateway_load import Address, Job, Timings
from gateway_sides import Direct, LiteLLM, Load, Ours, PassThrough, Server, upstream

DIRECT, PASS, LITELLM, OURS = "direct", "pass-through", "LiteLLM", "ours"
SIDES = (DIRECT, PASS, LITELLM, OURS)
AT_ONCE = 8
LONG = 5000
"""Requests between the two measurements of memory."""
MEMORY_CASE = next(case for case in CASES if case.name == "middle")


@dataclass(slots=True)
class Figures:
    """The figures of one side in one case, over all rounds."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Seconds for 1,000 requests."""
    whole: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def add_concurrent(self, finished: "Conversations") -> None:
        requests = len(finished.timings.whole)
        self.rates.append(requests / finished.timings.seconds)
        self.cpu.append(finished.cpu / requests * 1000)

    def add_sequential(self, finished: "Conversations") -> None:
        self.whole += finished.timings.whole
        self.first += finished.timings.first


Results = dict[tuple[str, str], Figures]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


@dataclass(frozen=True, slots=True)
class Conversations:
    """Finished conversations, and the CPU that the server spent on their requests."""

    timings: Timings
    cpu: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The running sides, and the clients."""

    load: Load
    servers: dict[str, Server]
    quick: bool
    sessions: list[float] = field(default_factory=list[float])
    """CPU seconds of Plimsoll for opening and ending a session."""

    def converse(
        self, server: Server, case: Case, count: int, turns: int, at_once: int
    ) -> Conversations:
        first = server.process.cpu
        addresses = server.open(count)
        before = server.process.cpu
        timings = self.load.run(Job(case.name, addresses, at_once, turns))
        after = server.process.cpu
        server.end()
        if server.name == OURS:
            self.sessions.append((server.process.cpu - after + before - first) / count)
        return Conversations(timings, after - before)

    def measure(self, server: Server, case: Case, figures: Figures) -> None:
        share = 4 if self.quick else 1
        count, turns = max(case.conversations // share, AT_ONCE), case.turns
        if server.slow:
            count, turns = AT_ONCE, 3
        finished = self.converse(server, case, count, turns, AT_ONCE)
        figures.add_concurrent(finished)
        turns = 5 if server.slow or case.stream else case.turns
        figures.add_sequential(self.converse(server, case, 1, turns, 1))

    def run(self, cases: list[Case], rounds: int, report: Callable[[str], None]) -> Results:
        results: Results = {}
        for number in range(rounds):
            for case in cases:
                report(f"round {number + 1} of {rounds}, {case.title}")
                for name, server in self.servers.items():
                    if not applies(case, name) or (server.slow and number):
                        continue
                    if not number:
                        self.converse(server, case, 1, 2 if server.slow else case.turns, 1)
                        server.check(case)
                    self.measure(server, case, results.setdefault((case.name, name), Figures()))
        return results


def applies(case: Case, side: str) -> bool:
    """True if a side supports the case: the upstream speaks Chat Completions only, so only Plimsoll
    translates the other dialects."""
    return case.dialect == "chat" or side == OURS


def base_of(case: Case, results: Results, side: str) -> Figures | None:
    """The figures of a side for the same stream in the dialect that every side speaks."""
    name = case.name
    if case.dialect != "chat":
        name = "paced" if case.gap else "chunks"
    return results.get((name, side))


def show(console: Console, cases: list[Case], results: Results) -> None:
    table = Table("case", "side", box=None, pad_edge=False)
    headings = ("requests/s", "p50 ms", "added", "p99", "added", "first byte", "added")
    for heading in (*headings, "CPU s/1,000", "× pass-through", "target"):
        table.add_column(heading, justify="right")
    for case in cases:
        title = case.title
        for side in SIDES:
            if figures := results.get((case.name, side)):
                cells = row(figures, base_of(case, results, DIRECT), base_of(case, results, PASS))
                target = f"≤ {case.at_most:g}" if side == OURS and case.at_most else ""
                table.add_row(title, side, *cells, target)
                title = ""
    console.print(table)


def row(figures: Figures, direct: Figures | None, base: Figures | None) -> list[str]:
    cells = [f"{statistics.median(figures.rates):,.0f}"]
    for kind, share in (("whole", 0.5), ("whole", 0.99), ("first", 0.5)):
        value = 1000 * percentile(getattr(figures, kind), share)
        cells.append(f"{value:,.2f}")
        compared = direct is not None and direct is not figures
        baseline = 1000 * percentile(getattr(direct, kind), share) if compared else 0.0
        cells.append(f"{value - baseline:+,.2f}" if compared else "")
    if figures is direct:
        # The CPU of this side is the upstream's own.
        return [*cells, "", ""]
    cells.append(f"{statistics.median(figures.cpu):.3f}")
    return [*cells, f"{ratio(figures, base):.2f}" if base else ""]


def ratio(figures: Figures, base: Figures) -> float:
    """The ratio of CPU, round by round: a disturbance affects both sides of a round."""
    return statistics.median(own / its for own, its in zip(figures.cpu, base.cpu, strict=False))


@dataclass(frozen=True, slots=True)
class Memory:
    """Megabytes of a server before and after many requests."""

    side: str
    requests: int
    before: float
    after: float


def memory(bench: Bench, names: Iterable[str], requests: int) -> list[Memory]:
    """Memory of servers that were just started and answered two conversations."""
    found: list[Memory] = []
    for name in names:
        server = bench.servers[name]
        size = MEMORY_CASE.turns * (10 if server.slow else 1)
        bench.converse(server, MEMORY_CASE, 2, MEMORY_CASE.turns, 2)
        before, count = server.process.megabytes, requests // size
        for _ in range(0, count, AT_ONCE):
            bench.converse(server, MEMORY_CASE, AT_ONCE, MEMORY_CASE.turns, AT_ONCE)
        answered = -(-count // AT_ONCE) * AT_ONCE * MEMORY_CASE.turns
        found.append(Memory(name, answered, before, server.process.megabytes))
    return found


def show_memory(console: Console, found: list[Memory]) -> None:
    table = Table("memory, 64 KB bodies", box=None, pad_edge=False)
    for heading in ("requests", "MB before", "after", "growth"):
        table.add_column(heading, justify="right")
    for each in found:
        cells = (f"{each.before:.1f}", f"{each.after:.1f}", f"{each.after - each.before:+.1f}")
        table.add_row(each.side, f"{each.requests:,}", *cells)
    console.print(table)


def targets(cases: list[Case], results: Results, found: list[Memory]) -> Iterable[str]:
    for case in cases:
        ours, base = (results.get((case.name, side)) for side in (OURS, PASS))
        if ours is None or base is None:
            continue
        if case.at_most:
            yield target(f"{case.title}: CPU, × pass-through", ratio(ours, base), case.at_most)
        if case.dialect == "chat":
            later = percentile(ours.first, 0.5) - percentile(base.first, 0.5)
            yield target(
                f"{case.title}: first byte, later than the pass-through's, ms", 1000 * later, 2
            )
    for each in found:
        if each.side == OURS:
            title = f"memory growth over {each.requests:,} requests, MB"
            yield target(title, each.after - each.before, 10)


def target(title: str, value: float, most: float) -> str:
    return f"{'pass' if value <= most else 'MISS'}  {title}: {value:.2f} (≤ {most:g})"


def start(name: str, behind: int, folder: Path, direct: Direct) -> Server:
    if name == DIRECT:
        return direct
    if name == PASS:
        return PassThrough(name, behind)
    return LiteLLM(name, behind, folder) if name == LITELLM else Ours(name, behind, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--side", action="append", choices=SIDES)
    parser.add_argument("--quick", action="store_true", help="take about a minute, without LiteLLM")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.only or case.name in options.only]
    names = options.side or [side for side in SIDES if not (options.quick and side == LITELLM)]
    rounds = options.rounds or (2 if options.quick else 5)
    console = Console(width=150)
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as made, ExitStack() as closing:
        load = Load()
        closing.callback(load.stop)
        process, behind = upstream()
        closing.callback(process.stop)
        servers: dict[str, Server] = {}
        for name in names:
            try:
                server = start(name, behind, Path(made), Direct(DIRECT, process, Address(behind)))
            except OSError as problem:
                console.print(f"{name}: left out, {problem}")
                continue
            servers[name] = server
            if server.process is not process:
                closing.callback(server.process.stop)
        bench = Bench(load, servers, options.quick)
        with console.status("memory") as status:
            measured = [side for side in servers if side != DIRECT] if not options.only else []
            found = memory(bench, measured, LONG // (5 if options.quick else 1))
            results = bench.run(cases, rounds, status.update)
    show(console, cases, results)
    if found:
        show_memory(console, found)
    if bench.sessions:
        cost = 1000 * statistics.median(bench.sessions)
        console.print(f"opening and ending a session of Plimsoll: {cost:.2f} ms of CPU")
    for line in targets(cases, results, found):
        console.print(line)


if __name__ == "__main__":
    main()
