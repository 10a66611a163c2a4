"""A long run: many sandboxes one after the other, each of which writes files.

Only a long run shows a file system that gets slower with use, so times are printed by blocks. At
regular intervals a reference sandbox starts in a home on tmpfs, which does not get slower. Its time
shows the load of the machine; compare the ratios to it.
"""

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from plimsoll.core.ids import Labels
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.host.ext4 import find_file_system
from plimsoll.sandboxes.protocol import Image, ImageSource, SandboxSpec

__all__ = ["long_run"]

BLOCKS = 20
MAX_GROWTH = 1.5
"""The last blocks may take this many times as long as the first."""
REFERENCES = 20
"""Sandboxes on tmpfs in each block."""
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Cycle:
    """The times of one sandbox, in seconds."""

    start: float
    write: float
    close: float


@dataclass(frozen=True, slots=True)
class Side:
    """A home in which sandboxes are started."""

    backend: LocalBackend
    image: Image
    script: str

    async def cycle(self) -> Cycle:
        spec = SandboxSpec(Labels("bench", "bench", this_process(), time.time() + 3600))
        times = [time.perf_counter()]
        sandbox = await self.backend.create(self.image, spec)
        times.append(time.perf_counter())
        done = await sandbox.exec(self.script)
        times.append(time.perf_counter())
        await sandbox.close()
        times.append(time.perf_counter())
        if not done.ok:
            raise SystemExit(f"writing files {done.complaint()}")
        return Cycle(*(after - before for before, after in itertools.pairwise(times)))


@dataclass(frozen=True, slots=True)
class Block:
    """The cycles of one block, and the reference cycles on tmpfs between them."""

    ours: list[Cycle]
    reference: list[Cycle]

    def p50(self, part: str) -> float:
        return 1000 * statistics.median(getattr(cycle, part) for cycle in self.ours)

    def ratio(self, part: str) -> float:
        return self.p50(part) / (
            1000 * statistics.median(getattr(cycle, part) for cycle in self.reference)
        )


@contextlib.asynccontextmanager
async def open_side(options: LocalOptions, files: int) -> AsyncGenerator[Side]:
    script = f"mkdir /w && cd /w && for n in $(seq {files}); do echo $n > $n; done"
    async with LocalBackend(options) as backend:
        yield Side(backend, await backend.build(ImageSource()), script)


async def long_run(console: Console, options: LocalOptions, count: int, files: int) -> None:
    """Run `count` sandboxes, and print p50 by blocks and the growth from the first to the last."""
    assert options.home is not None
    home = options.home
    disk = find_file_system(home)
    kind = f"{disk.kind} ({disk.slow or 'not slowed by removals'})"
    console.print(f"{count:,} sandboxes one after the other, {files} files each, home on {kind}")
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-", dir=MEMORY) as memory:
        reference = replace(options, home=Path(memory), upper="disk")
        async with open_side(options, files) as ours, open_side(reference, files) as other:
            blocks = await measure(console, home, ours, other, count)
    for part in ("start", "close"):
        grown = statistics.median(b.p50(part) for b in blocks[-3:])
        grown /= statistics.median(b.p50(part) for b in blocks[:3])
        above = statistics.median(b.ratio(part) for b in blocks[-3:])
        above /= statistics.median(b.ratio(part) for b in blocks[:3])
        console.print(
            f"{part}: the last blocks took {grown:.2f} times as long as the first; "
            f"relative to tmpfs {above:.2f} times, target: at most {MAX_GROWTH}"
        )


async def measure(console: Console, home: Path, ours: Side, other: Side, count: int) -> list[Block]:
    table = Table("sandboxes run", box=None, pad_edge=False)
    for heading in ("start p50 ms", "× tmpfs", "write p50 ms", "close p50 ms", "× tmpfs"):
        table.add_column(heading, justify="right")
    table.add_column("not yet removed", justify="right")
    blocks: list[Block] = []
    size = max(1, count // BLOCKS)
    interval = max(1, size // REFERENCES)
    for done in range(size, count + 1, size):
        block = Block([], [])
        for number in range(size):
            block.ours.append(await ours.cycle())
            if number % interval == 0:
                block.reference.append(await other.cycle())
        blocks.append(block)
        table.add_row(
            f"{done:,}",
            f"{block.p50('start'):.1f}",
            f"{block.ratio('start'):.2f}",
            f"{block.p50('write'):.1f}",
            f"{block.p50('close'):.1f}",
            f"{block.ratio('close'):.2f}",
            str(sum(1 for _ in (home / "sandboxes").iterdir())),
        )
    console.print(table)
    return blocks
