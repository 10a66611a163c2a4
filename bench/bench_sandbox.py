"""The speed of local sandboxes, compared with the bare tools that they use.

Each round measures every side once, so that a busy machine affects all alike; compare ratios.
Prints one table, then the rate of trials and the memory of the processes, and last a long run of
many sandboxes that write files, whose times are printed by blocks.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from plimsoll.agents.oracle import Oracle
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import Image, ImageSource, SandboxSpec
from plimsoll.tasks.loader import load_task
from plimsoll.trials.trial import run_trial
from sandbox_long import long_run

ROOT = Path(__file__).parent.parent
TASK = ROOT / "examples/tasks/count-words"
MANY = 16

OVERLAY_SCRIPT = """
mount -t tmpfs none "$1" && mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
exec chroot "$1/root" /bin/true
"""
NAMESPACES = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork"]

Side = Callable[[], Awaitable[None]]


async def command(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.DEVNULL)
    if await process.wait():
        raise SystemExit(f"{argv[0]} failed")


async def bare_unshare() -> None:
    await command("unshare", "--fork", "true")


async def bare_overlay() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await command("unshare", *NAMESPACES, "sh", "-ec", OVERLAY_SCRIPT, "sh", folder)


async def docker_run() -> None:
    await command("docker", "run", "--rm", "--network", "none", "debian:bookworm-slim", "true")


def plimsoll_side(backend: LocalBackend, image: Image, spec: SandboxSpec) -> Side:
    async def once() -> None:
        sandbox = await backend.create(image, spec)
        done = await sandbox.exec(["true"])
        await sandbox.close()
        if not done.ok:
            raise SystemExit(f"true {done.complaint()}")

    return once


async def timed(side: Side) -> float:
    started = time.perf_counter()
    await side()
    return time.perf_counter() - started


async def measure(sides: dict[str, Side], rounds: int) -> tuple[dict[str, list[float]], ...]:
    """The times of each side in seconds: sequential, and 16 at once."""
    serial: dict[str, list[float]] = {name: [] for name in sides}
    many: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            serial[name].append(await timed(side))
    for _ in range(max(2, rounds // 10)):
        for name, side in sides.items():
            many[name] += await asyncio.gather(*(timed(side) for _ in range(MANY)))
    return serial, many


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def show(console: Console, serial: dict[str, list[float]], many: dict[str, list[float]]) -> None:
    table = Table("side", box=None, pad_edge=False)
    for heading in ("p50 ms", "p99 ms", "× overlay", f"p50 ms, {MANY} at once", "p99 ms"):
        table.add_column(heading, justify="right")
    base = statistics.median(serial["unshare + overlay + chroot"])
    for name in serial:
        one, all_at_once = serial[name], many[name]
        table.add_row(
            name,
            f"{percentile(one, 0.5) * 1000:.1f}",
            f"{percentile(one, 0.99) * 1000:.1f}",
            f"{percentile(one, 0.5) / base:.2f}",
            f"{percentile(all_at_once, 0.5) * 1000:.1f}",
            f"{percentile(all_at_once, 0.99) * 1000:.1f}",
        )
    console.print(table)


async def trials(console: Console, backend: LocalBackend, count: int, at_once: int) -> None:
    task, gate = load_task(TASK), asyncio.Semaphore(at_once)
    with tempfile.TemporaryDirectory() as folder:

        async def one(number: int) -> str:
            async with gate:
                result = await run_trial(
                    task, attempt=number, agent=Oracle(), backend=backend, run="bench",
                    directory=Path(folder, str(number)),
                )  # fmt: skip
            return result.verdict.verdict

        await one(0)
        started = time.perf_counter()
        verdicts = await asyncio.gather(*(one(number) for number in range(1, count + 1)))
        seconds = time.perf_counter() - started
    graded = verdicts.count("graded")
    console.print(
        f"{count} trials of {task.name}, oracle, {at_once} at once: {seconds:.1f} s, "
        f"{count / seconds * 60:.0f} trials/min, {graded} graded"
    )


async def memory(console: Console, backend: LocalBackend, once: Side, count: int) -> None:
    """Print the RSS of this process and of the zygote while sandboxes are started and closed."""
    rows: list[tuple[int, float, float]] = []
    for done in range(count + 1):
        if done % max(1, count // 4) == 0:
            rows.append((done, rss_mb(os.getpid()), rss_mb(backend.zygote_pid or 0)))
        if done < count:
            await once()
    table = Table("sandboxes run", box=None, pad_edge=False)
    table.add_column("this process MB", justify="right")
    table.add_column("zygote MB", justify="right")
    for done, own, zygote in rows:
        table.add_row(f"{done:,}", f"{own:.1f}", f"{zygote:.1f}")
    console.print(table)


def rss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return float("nan")


def has_docker() -> bool:
    if shutil.which("docker") is None:
        return False
    argv = ["docker", "image", "inspect", "debian:bookworm-slim"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--sandboxes", type=int, default=2000)
    parser.add_argument(
        "--files", type=int, default=50, help="files that each sandbox of the long run writes"
    )
    parser.add_argument("--folder", type=Path, help="folder of the home, e.g. on another disk")
    parser.add_argument("--upper", choices=["auto", "tmpfs", "disk"], default="auto")
    parser.add_argument("--only", choices=["long"], help="measure only the long run")
    parser.add_argument("--quick", action="store_true", help="take about a minute")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.trials, options.sandboxes = 10, 20, 200
    console = Console(width=110)
    sides: dict[str, Side] = {"unshare --fork true": bare_unshare}
    if os.geteuid() == 0:
        sides["unshare + overlay + chroot"] = bare_overlay
    else:
        raise SystemExit("run this benchmark as root: it mounts a bare overlay")
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-", dir=options.folder) as folder:
        settings = LocalOptions(home=Path(folder), upper=options.upper)
        async with LocalBackend(settings) as backend:
            image = await backend.build(ImageSource())
            spec = SandboxSpec(Labels("bench", "bench", this_process(), time.time() + 3600))
            once = plimsoll_side(backend, image, spec)
            if options.only is None:
                sides["plimsoll create + exec true + close"] = once
                if has_docker():
                    sides["docker run --rm"] = docker_run
                else:
                    console.print(
                        "docker run --rm: not measured, no daemon or no image debian:bookworm-slim"
                    )
                show(console, *await measure(sides, options.rounds))
                console.print()
                await trials(console, backend, options.trials, 8)
                console.print()
                await memory(console, backend, once, options.sandboxes)
                console.print()
            await long_run(console, settings, options.sandboxes, options.files)


if __name__ == "__main__":
    asyncio.run(main())
