"""The sides of `bench_docker.py`: Plimsoll, plain calls of the Docker API, and Harbor.

A trial counts if it is graded 1. The clock stops when the side has removed its containers; the
plain script that reuses containers stops it before. CPU counts the side's own processes. The
daemon's CPU counts dockerd and containerd, without containers.
"""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import aiohttp

from plimsoll.core.ids import Labels
from plimsoll.core.permissions import PUBLIC
from plimsoll.runs.evaluation.eval_run import EvalRequest, EvalRun
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.sandboxes.protocol import ImageSource, SandboxSpec

__all__ = [
    "DaemonProcesses",
    "Harbor",
    "PlainScript",
    "Plimsoll",
    "Sample",
    "Side",
    "harbor_problem",
    "write_tasks",
]

IMAGE = "debian:bookworm-slim"
TASKS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one side."""

    trials: int
    seconds: float
    cpu_seconds: float
    daemon_cpu_seconds: float = float("nan")

    @property
    def per_minute(self) -> float:
        return self.trials / self.seconds * 60

    @property
    def cpu_ms(self) -> float:
        return self.cpu_seconds / self.trials * 1000

    @property
    def daemon_cpu_ms(self) -> float:
        return self.daemon_cpu_seconds / self.trials * 1000


Side = Callable[[int, int], Awaitable[Sample]]
"""Runs all tasks a number of times, with a number of concurrent trials."""


def write_tasks(root: Path) -> None:
    for number in range(TASKS):
        files = {
            "task.toml": 'schema_version = "1.4"\n',
            "instruction.md": f"Write {number} to /app/out.\n",
            "environment/Dockerfile": f"FROM {IMAGE}\nWORKDIR /app\n",
            "solution/solve.sh": f"#!/bin/bash\necho {number} > /app/out\n",
            "tests/test.sh": "#!/bin/bash\n"
            f"if grep -qx {number} /app/out; then echo 1; else echo 0; fi"
            " > /logs/verifier/reward.txt\n",
        }
        for name, text in files.items():
            path = root / f"write-{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


class Clock:
    """Wall time, and CPU time of this process, its waited-for children and the daemon."""

    def __init__(self, daemon: "DaemonProcesses") -> None:
        self._daemon = daemon
        self._began = time.perf_counter(), _own_cpu(), daemon.cpu()

    def sample(self, trials: int) -> Sample:
        wall, own, daemon = self._began
        return Sample(
            trials, time.perf_counter() - wall, _own_cpu() - own, self._daemon.cpu() - daemon
        )


def _own_cpu() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


class DaemonProcesses:
    """The dockerd behind a socket of this host, with its child processes."""

    def __init__(self, url: str) -> None:
        self._pid: int | None = None
        if url.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(url.removeprefix("unix://"))
                peer = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = struct.unpack("3i", peer)[0]
            # Another process may have created the socket and passed it to dockerd.
            if Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd":
                self._pid = pid

    def cpu(self) -> float:
        """CPU seconds so far; NaN if the daemon's process is not visible."""
        if self._pid is None:
            return float("nan")
        ticks = 0
        for pid in (self._pid, *_children(self._pid)):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


class PlainScript:
    """Only the calls of the Docker API that a trial needs."""

    def __init__(self, session: aiohttp.ClientSession, daemon: DaemonProcesses) -> None:
        self._session = session
        self._daemon = daemon

    async def cold(self, times: int, at_once: int) -> Sample:
        clock = Clock(self._daemon)

        async def one() -> None:
            container = await self._start()
            await self._commands(container)
            await self._call("DELETE", f"/containers/{container}?force=1&v=1")

        await _all(one, times * TASKS, at_once)
        return clock.sample(times * TASKS)

    async def reused(self, times: int, at_once: int) -> Sample:
        free = [await self._start() for _ in range(at_once)]

        async def one() -> None:
            container = free.pop()
            await self._commands(container)
            free.append(container)

        clock = Clock(self._daemon)
        await _all(one, times * TASKS, at_once)
        sample = clock.sample(times * TASKS)
        for container in free:
            await self._call("DELETE", f"/containers/{container}?force=1&v=1")
        return sample

    async def _start(self) -> str:
        config = {"Image": IMAGE, "Cmd": ["sleep", "infinity"], "WorkingDir": "/app"}
        container = json.loads(await self._call("POST", "/containers/create", config))["Id"]
        await self._call("POST", f"/containers/{container}/start")
        return container

    async def _commands(self, container: str) -> None:
        for script in (
            "echo 1 > /app/out",
            "grep -qx 1 /app/out && echo 1 > /reward",
            "cat /reward",
        ):
            config = {"Cmd": ["sh", "-c", script], "AttachStdout": True, "AttachStderr": True}
            created = await self._call("POST", f"/containers/{container}/exec", config)
            path = f"/exec/{json.loads(created)['Id']}"
            await self._call("POST", f"{path}/start", {"Detach": False, "Tty": False})
            if json.loads(await self._call("GET", f"{path}/json"))["ExitCode"]:
                raise SystemExit(f"{script} failed in the plain script")

    async def _call(self, method: str, path: str, body: object = None) -> bytes:
        async with self._session.request(method, f"http://docker/v1.40{path}", json=body) as answer:
            content = await answer.read()
            if answer.status >= 400:
                raise SystemExit(f"{method} {path}: {content.decode(errors='replace')}")
            return content


async def _all(one: Callable[[], Awaitable[None]], count: int, at_once: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            await one()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


class Plimsoll:
    """`plimsoll eval` without its output."""

    def __init__(self, root: Path, url: str, daemon: DaemonProcesses) -> None:
        self._root = root
        self._url = url
        self._daemon = daemon
        self._runs = 0
        (root / "plimsoll.toml").write_text(f'[docker]\nhost = "{url}"\n')

    def side(self, pool: str, on_stats: Callable[[int, PoolStats], None]) -> Side:
        async def measure(times: int, at_once: int) -> Sample:
            run = EvalRun.prepare(self._request(pool, times, at_once))
            clock = Clock(self._daemon)
            await run.run()
            sample = clock.sample(times * TASKS)
            if run.pool is not None:
                on_stats(at_once, run.pool)
            summary = run.finish()
            if summary.graded != sample.trials or summary.mean_reward != 1:
                reasons = {row.reason or f"reward {row.reward}" for row in summary.results}
                raise SystemExit(f"pool {pool}: not every trial is graded 1: {reasons}")
            return sample

        return measure

    async def leases(self, pool: str, count: int) -> PoolStats:
        """Lease sandboxes one by one; with a pool, each when a warm one is ready."""
        options = PoolOptions(concurrency=1, reuse=Reuse(pool))
        source, spec = ImageSource(reference=IMAGE), SandboxSpec(_labels(), network=PUBLIC)
        async with Pool(DockerBackend(DockerOptions(host=self._url)), options) as leasing:
            image = await leasing.build(source)
            leasing.expect(source, spec)
            for number in range(1, count + 1):
                if options.reuse is not Reuse.NONE:
                    await _ready(leasing, number)
                sandbox = await leasing.create(image, spec)
                if number < count:
                    leasing.expect(source, spec)
                await sandbox.exec(["true"])
                await sandbox.close()
            return leasing.stats

    def _request(self, pool: str, times: int, at_once: int) -> EvalRequest:
        self._runs += 1
        return EvalRequest(
            path=self._root / "tasks",
            agent="oracle",
            backend="docker",
            attempts=times,
            concurrency=at_once,
            pattern=None,
            out=self._root / "runs" / str(self._runs),
            config=self._root / "plimsoll.toml",
            skip_invalid=False,
            canary_every=0,
            pool=pool,
        )


def _labels() -> Labels:
    return Labels("bench", "bench", this_process(), time.time() + 3600)


async def _ready(pool: Pool, count: int) -> None:
    """Wait until a pool has this many warm sandboxes, and a moment for the last start."""
    made = 0
    while made < count:
        await asyncio.sleep(0.5)
        stats = pool.stats
        made = (stats.start.count if stats.start else 0) + stats.resets


class Harbor:
    """`harbor run`, as shipped or without waiting for stopped containers."""

    def __init__(self, program: str, root: Path, url: str, daemon: DaemonProcesses) -> None:
        self._program = str(Path(shutil.which(program) or program).absolute())
        self._root = root
        self._daemon = daemon
        self._jobs = 0
        # Model prices are not fetched: there may be no network.
        self._env = os.environ | {"DOCKER_HOST": url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        (root / "grace.yaml").write_text("services:\n  main:\n    stop_grace_period: 0s\n")
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self.version = done.stdout.strip()
        before = _own_cpu()
        subprocess.run([program, "run", "--help"], env=self._env, capture_output=True, check=True)
        self._startup_cpu = _own_cpu() - before

    def side(self, *more: str) -> Side:
        async def measure(times: int, at_once: int) -> Sample:
            self._jobs += 1
            name = str(self._jobs)
            words = ["run", "-p", "tasks", "-a", "oracle", "-e", "docker", "-q", "-y"]
            words += ["-o", "jobs", "--job-name", name, "-n", str(at_once), "-k", str(times)]
            clock = Clock(self._daemon)
            done = await asyncio.create_subprocess_exec(
                self._program, *words, *more, cwd=self._root, env=self._env,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await done.communicate()
            if done.returncode:
                raise SystemExit(output.decode(errors="replace"))
            return self._read(self._root / "jobs" / name / "result.json", clock, times * TASKS)

        return measure

    def _read(self, file: Path, clock: Clock, trials: int) -> Sample:
        """Read the time from Harbor's own clock, without the start of Python, as for Plimsoll."""
        result = json.loads(file.read_text())
        stats = result["stats"]
        rewards = [r for one in stats["evals"].values() for r in one["reward_stats"]["reward"]]
        if stats["n_completed_trials"] != trials or rewards != ["1.0"]:
            raise SystemExit(f"harbor: not every trial has the reward 1, see {file}")
        began, ended = (datetime.fromisoformat(result[k]) for k in ("started_at", "finished_at"))
        sample = clock.sample(trials)
        cpu = sample.cpu_seconds - self._startup_cpu
        return Sample(trials, (ended - began).total_seconds(), cpu, sample.daemon_cpu_seconds)


def harbor_problem(program: str) -> str | None:
    if shutil.which(program) is None:
        return "it is not installed here (pip install harbor, Python 3.12 or newer; --harbor PATH)"
    if shutil.which("docker") is None:
        return "it needs the `docker` command, which is missing"
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return "it needs `docker compose`, which is missing" if asked.returncode else None
