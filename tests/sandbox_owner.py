"""A process with its own sandboxes, for tests that kill it or clean up after it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers import long_time, processes_with
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.inventory import LocalInventory
from plimsoll.sandboxes.reaper import reap

__all__ = ["SandboxOwner", "running_owner"]

OWNER = """
import asyncio, json, sys, time
from pathlib import Path
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, Limits, SandboxSpec

home, run, number, seconds = sys.argv[1:]

async def main():
    async with LocalBackend(LocalOptions(home=Path(home))) as backend:
        image = await backend.build(ImageSource(reference="x"))
        many = []
        for n in range(int(number)):
            labels = Labels(run, f"task.{n + 1}", this_process(), time.time() + 3600)
            spec = SandboxSpec(labels, limits=Limits(memory_mb=200, pids=50))
            many.append(await backend.create(image, spec))
        for n, one in enumerate(many, 1):
            await one.exec(f"setsid sleep {seconds}.{n} >/dev/null 2>&1 & touch /x")
        print(json.dumps([one.id for one in many]), flush=True)
        await asyncio.gather(*(stay(n, one) for n, one in enumerate(many, 1)))

async def stay(n, one):
    try:
        await one.exec(f"sleep {seconds}.{n}")
    except SandboxUnavailable as error:
        print(f"task.{n} is gone: {error}", flush=True)

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class SandboxOwner:
    """A process with sandboxes. Their tickets are task.1, task.2 and so on."""

    process: subprocess.Popen[str]
    ids: list[str]
    mark: str

    def running(self, ticket: int) -> list[int]:
        """The ids of the processes in one of its sandboxes."""
        return processes_with(f"{self.mark}.{ticket}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running_owner(home: Path, run: str, number: int = 2) -> Iterator[SandboxOwner]:
    """Start a process whose sandboxes run until it is killed.

    The end of the block kills it, and removes what it left.
    """
    mark = long_time()
    command = [sys.executable, "-c", OWNER, str(home), run, str(number), mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield SandboxOwner(process, json.loads(process.stdout.readline()), mark)
        finally:
            process.kill()
            process.wait()
            # Control groups outlive the test's folder. In a thread: this one may run a loop.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, reap(LocalInventory(Home.open(home)))).result()
