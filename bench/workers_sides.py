"""The workers of `bench_workers.py`: Plimsoll's, and verifiers' from a virtual environment."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from plimsoll.trials.verdicts import Void
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.messages import EnvironmentOptions, Order, WorkerSpec
from workers_environment import BenchOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from stand_ins import stand_in

__all__ = ["VERIFIERS", "Churn", "Side", "WorkerProcess", "order", "ours", "spec", "verifiers"]

BENCH = Path(__file__).parent
CORES = sorted(os.sched_getaffinity(0))
VERIFIERS = "0.4.0"


@dataclass(frozen=True, slots=True)
class Churn:
    """The workload of a rollout, and the number of concurrent rollouts."""

    turns: int = 45
    size: int = 200_000
    at_once: int = 4

    @property
    def live_mb(self) -> float:
        """Megabytes of the histories of concurrent rollouts at their longest."""
        return self.at_once * self.turns * self.size / 1e6


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """The kernel's figures of a process, which `settle` pins to the last core."""

    pid: int

    def settle(self) -> None:
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {CORES[-1]})

    @property
    def cpu(self) -> float:
        """CPU seconds so far, of all its threads."""
        return time.clock_gettime((~self.pid << 3) | 2)

    @property
    def rss(self) -> float:
        return self._megabytes("VmRSS:")

    @property
    def peak(self) -> float:
        return self._megabytes("VmHWM:")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _megabytes(self, field: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition(field)[2].split()[0]) / 1024


class Side(Protocol):
    """A worker that is ready and has run nothing yet."""

    process: WorkerProcess

    async def run(self, count: int, on_end: Callable[[], None]) -> None:
        """Run `count` rollouts of the churn; calls `on_end` after each."""
        ...


def spec(options: BenchOptions, concurrency: int, maker: str = "bench_environment") -> WorkerSpec:
    return WorkerSpec(
        run="bench",
        options=EnvironmentOptions(config=msgspec.Raw(msgspec.json.encode(options)), directory=""),
        concurrency=concurrency,
        environment=stand_in(f"workers_environment:{maker}", BENCH),
    )


def order(ticket: str, task: str) -> Order:
    return Order(ticket=ticket, task=task, name="bench", attempt=1, folder="")


class _Ours:
    def __init__(self, supervisor: Supervisor, churn: Churn, command: str) -> None:
        self.process = WorkerProcess(int(supervisor.status()[0].where.removeprefix("pid ")))
        self._supervisor = supervisor
        self._task = f"{command} {churn.turns} {churn.size}"
        self._started = 0

    async def run(self, count: int, on_end: Callable[[], None]) -> None:
        async def one(number: int) -> None:
            result = await self._supervisor.run(order(f"churn-{number}", self._task))
            if isinstance(result.verdict, Void):
                raise SystemExit(f"a rollout is void: {result.verdict}")
            on_end()

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                self._started += 1
                group.create_task(one(self._started))


@asynccontextmanager
async def ours(
    policy: str, folder: Path, churn: Churn, *, collects: bool = True, command: str = "play"
) -> AsyncIterator[Side]:
    """Plimsoll's worker. `command` is that of the orders: `play`, `apart` or `alone`."""
    worker_spec = spec(BenchOptions(policy, str(folder), collects), churn.at_once)
    async with Supervisor(ProcessEngine(), worker_spec, number=1) as supervisor:
        await supervisor.wait_ready()
        yield _Ours(supervisor, churn, command)


class _Verifiers:
    """A worker of verifiers and its client, each a process of its own."""

    def __init__(self, server: "asyncio.subprocess.Process", client: "asyncio.subprocess.Process"):
        self.process = WorkerProcess(server.pid)
        self._client = client

    async def run(self, count: int, on_end: Callable[[], None]) -> None:
        assert self._client.stdin and self._client.stdout
        self._client.stdin.write(b"%d\n" % count)
        for _ in range(count):
            line = await self._client.stdout.readline()
            if line != b"done\n":
                raise SystemExit(f"a rollout of verifiers: {line.decode() or 'its client ended'}")
            on_end()


@asynccontextmanager
async def verifiers(
    policy: str, folder: Path, churn: Churn, *, collects: bool = True
) -> AsyncIterator[Side]:
    """The worker of verifiers. Raises `OSError` if it cannot be installed."""
    python = await asyncio.to_thread(_verifiers_python)
    address = f"ipc://{folder}/verifiers.sock"
    made: list[asyncio.subprocess.Process] = []

    async def start(role: str) -> "asyncio.subprocess.Process":
        figures = (churn.turns, churn.size, churn.at_once, int(collects))
        process = await asyncio.create_subprocess_exec(
            *(str(python), str(BENCH / "workers_verifiers.py"), role, address, policy),
            *map(str, figures),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(BENCH), "XDG_CACHE_HOME": str(folder)},
        )
        made.append(process)
        return process

    try:
        server, client = await start("server"), await start("client")
        assert client.stdout
        if await client.stdout.readline() != b"ready\n":
            raise OSError("the worker of verifiers did not start")
        yield _Verifiers(server, client)
    finally:
        for process in reversed(made):
            if process.returncode is None:
                process.kill()
            await process.wait()


def _verifiers_python() -> Path:
    """The Python with verifiers, installed on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "plimsoll-bench" / f"verifiers-{VERIFIERS}"
    ready = home / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        requirement = f"verifiers=={VERIFIERS}"
        install = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", requirement]
        if subprocess.run(install, stderr=subprocess.DEVNULL).returncode:
            raise OSError(f"{requirement} cannot be installed here")
        ready.touch()
    return home / "bin/python"
