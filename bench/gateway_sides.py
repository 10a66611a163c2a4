"""The processes of `bench_gateway.py`, and their CPU and memory.

Each server is a process of its own on the last core; clients and upstream share the others.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Protocol

import msgspec

from gateway_cases import Case
from gateway_load import Address, Job, Timings
from gateway_ours import Opened
from plimsoll.trajectories.trajectory_file import read_trajectory

__all__ = ["Direct", "LiteLLM", "Load", "Ours", "PassThrough", "Process", "Server", "upstream"]

BENCH = Path(__file__).parent
CORES = sorted(os.sched_getaffinity(0))
LITELLM = "1.106.0"


class Process:
    """A program, and the CPU and memory of it and its children."""

    def __init__(self, *command: str, core: int, has_output: bool = True, **env: str) -> None:
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if has_output else subprocess.DEVNULL,
            stderr=None if has_output else subprocess.DEVNULL,
            env={**os.environ, **env},
            text=True,
        )
        os.sched_setaffinity(self._child.pid, {core})

    def send(self, message: object) -> None:
        assert self._child.stdin
        self._child.stdin.write(msgspec.json.encode(message).decode() + "\n")
        self._child.stdin.flush()

    def receive(self) -> str:
        assert self._child.stdout
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"{self._child.args} ended")
        return line

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    @property
    def cpu(self) -> float:
        """CPU seconds so far, from the kernel's clock of each process."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self._pids())

    @property
    def megabytes(self) -> float:
        kilobytes = 0
        for pid in self._pids():
            status = Path(f"/proc/{pid}/status").read_text()
            kilobytes += int(status.partition("VmRSS:")[2].split()[0])
        return kilobytes / 1024

    def _pids(self) -> list[int]:
        found, more = [], [self._child.pid]
        while more:
            pid = more.pop()
            found.append(pid)
            for thread in Path(f"/proc/{pid}/task").iterdir():
                more += map(int, (thread / "children").read_text().split())
        return found

    def stop(self) -> None:
        """Close the input, which ends our own programs; terminate any other program."""
        assert self._child.stdin
        self._child.stdin.close()
        for escalate in (lambda: None, self._child.terminate, self._child.kill):
            escalate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(5)
                break
        if self._child.stdout:
            self._child.stdout.close()


def _script(name: str, *arguments: str, core: int) -> Process:
    return Process(sys.executable, str(BENCH / name), *arguments, core=core)


def _port(process: Process) -> int:
    return msgspec.json.decode(process.receive(), type=dict[str, int])["port"]


def upstream() -> tuple[Process, int]:
    process = _script("gateway_upstream.py", core=CORES[0])
    return process, _port(process)


class Load:
    """The clients."""

    def __init__(self) -> None:
        self._process = _script("gateway_load.py", core=CORES[0])

    def run(self, job: Job) -> Timings:
        self._process.send(job)
        timings = msgspec.json.decode(self._process.receive(), type=Timings)
        if timings.problem:
            raise SystemExit(f"{job.case} on port {job.addresses[0].port}: {timings.problem}")
        return timings

    def stop(self) -> None:
        self._process.stop()


class Server(Protocol):
    """One side of the comparison."""

    name: str
    process: Process
    slow: bool
    """Measured with fewer requests."""

    def open(self, count: int) -> list[Address]:
        """The addresses of this many conversations."""
        ...

    def end(self) -> None:
        """End the conversations."""
        ...

    def check(self, case: Case) -> None:
        """Check that the last conversation, with all turns, left the expected result."""
        ...


class _Plain:
    """A server without sessions."""

    slow = False

    def __init__(self, name: str, process: Process, address: Address) -> None:
        self.name = name
        self.process = process
        self._address = address

    def open(self, count: int) -> list[Address]:
        return [self._address] * count

    def end(self) -> None:
        pass

    def check(self, case: Case) -> None:
        pass


class Direct(_Plain):
    """The upstream itself, without a gateway."""


class PassThrough(_Plain):
    """A gateway of aiohttp that only forwards bytes."""

    def __init__(self, name: str, behind: int) -> None:
        address = f"http://127.0.0.1:{behind}"
        process = _script("gateway_passthrough.py", address, core=CORES[-1])
        super().__init__(name, process, Address(_port(process)))


class Ours:
    """Plimsoll's gateway, which writes a trajectory for each conversation."""

    slow = False

    def __init__(self, name: str, behind: int, folder: Path) -> None:
        self.name = name
        address = f"http://127.0.0.1:{behind}"
        self.process = _script("gateway_ours.py", address, str(folder), core=CORES[-1])
        _port(self.process)
        self.written: list[str] = []
        """The trajectories of the last conversations."""

    def open(self, count: int) -> list[Address]:
        self.process.send({"open": count})
        opened = msgspec.json.decode(self.process.receive(), type=Opened)
        self.written = opened.written or self.written
        return opened.addresses

    def end(self) -> None:
        self.open(0)

    def check(self, case: Case) -> None:
        """Check the recorded trajectories: a gateway that loses records measures nothing."""
        trajectory = read_trajectory(Path(self.written[-1]))
        branches = [exchange.branch for exchange in trajectory.exchanges]
        reasons = {exchange.untrainable for exchange in trajectory.exchanges}
        if branches != ["start"] + ["extends"] * (case.turns - 1):
            raise SystemExit(f"{case.name}: recorded as {branches}")
        if case.ids and reasons != {""}:
            raise SystemExit(f"{case.name}: recorded without ids: {reasons}")


class LiteLLM(_Plain):
    """LiteLLM's proxy, in its own virtual environment."""

    slow = True

    def __init__(self, name: str, behind: int, folder: Path) -> None:
        config = {
            "model_list": [
                {
                    "model_name": "policy",
                    "litellm_params": {
                        "model": "hosted_vllm/policy",
                        "api_base": f"http://127.0.0.1:{behind}/v1",
                        "api_key": "none",
                    },
                }
            ],
            "litellm_settings": {"telemetry": False, "num_retries": 0},
        }
        file = folder / "litellm.yaml"
        file.write_bytes(msgspec.json.encode(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        address = Address(port, key=f"sk-{secrets.token_hex(32)}")
        process = Process(
            *(str(_litellm_program()), "--config", str(file)),
            *("--host", "127.0.0.1", "--port", str(port)),
            core=CORES[-1],
            has_output=False,
            LITELLM_MASTER_KEY=address.key,
            LITELLM_LOG="ERROR",
            LITELLM_LOCAL_MODEL_COST_MAP="True",
        )
        super().__init__(name, process, address)
        self._wait()

    def _wait(self) -> None:
        address = f"http://127.0.0.1:{self._address.port}/health/liveliness"
        for _ in range(240):
            try:
                with urllib.request.urlopen(address, timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if not self.process.running:
                    break
                time.sleep(0.5)
        self.process.stop()
        raise OSError("LiteLLM's proxy did not start")


def _litellm_program() -> Path:
    """The program, installed on first use. Raises `OSError` if it cannot be installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "plimsoll-bench" / f"litellm-{LITELLM}"
    ready = home / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        requirement = f"litellm[proxy]=={LITELLM}"
        install = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", requirement]
        if subprocess.run(install, stderr=subprocess.DEVNULL).returncode:
            raise OSError(f"{requirement} cannot be installed here")
        ready.touch()
    return home / "bin/litellm"
