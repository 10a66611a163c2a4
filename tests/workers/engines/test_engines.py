"""The engine interface, with every engine: start workers, end them, observe their end."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scripted_environment import order, spec
from supervised import Mark, options, pid_of

from helpers import long_time, processes_with
from plimsoll.core.errors import WorkerError
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Void
from plimsoll.workers.channel import ControllerSocket
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.engines.protocol import Engine, Placed
from plimsoll.workers.messages import Hello


@asynccontextmanager
async def started(engine: Engine) -> AsyncIterator[Placed]:
    """A worker that has sent its hello and got no reply."""
    async with engine, ControllerSocket(engine.host) as channel:
        placed = await engine.start(channel.prepare("worker-1", {"PLIMSOLL_NAMED": "yes"}))
        received = await channel.receive()
        assert received.worker == "worker-1" and received.message == Hello()
        await until(lambda: "pid" in placed.where)
        assert placed.is_placed
        yield placed


def exists(pid: int) -> bool:
    """True if the process exists, also as a zombie."""
    return Path(f"/proc/{pid}").exists()


async def test_every_waiter_sees_the_end(engine: Engine):
    async with started(engine) as placed:
        waits = [asyncio.create_task(placed.ended()) for _ in range(3)]
        await asyncio.sleep(0.05)
        waits[0].cancel()
        os.kill(pid_of(placed.where), signal.SIGKILL)
        for wait in waits[1:]:
            exit = await wait
            assert exit.how == "killed by signal 9"
            assert exit.killed
        assert await placed.ended() == exit


async def test_a_killed_worker_is_gone_when_kill_returns_and_no_zombie(engine: Engine):
    async with started(engine) as placed:
        pid = pid_of(placed.where)
        os.kill(pid, signal.SIGSTOP)
        await placed.kill()
        assert not exists(pid)
        await placed.kill()


async def test_leaving_the_engine_ends_all_workers(engine: Engine):
    async with started(engine) as placed:
        pid = pid_of(placed.where)
        os.kill(pid, signal.SIGSTOP)
    assert not exists(pid)


async def test_a_worker_gets_variables_in_its_environment_and_not_as_arguments(
    engine: Engine,
):
    async with started(engine) as placed:
        entry = Path(f"/proc/{pid_of(placed.where)}")
        assert b"PLIMSOLL_NAMED=yes" in (entry / "environ").read_bytes()
        assert b"PLIMSOLL_NAMED" not in (entry / "cmdline").read_bytes()


async def test_a_worker_ends_with_its_child_processes(engine: Engine, mark: Mark):
    seconds = long_time()
    async with Supervisor(engine, spec(), number=1, options=options()) as supervisor:
        await supervisor.run(order("a", f"start {seconds}"))
        assert processes_with(seconds)
        result = await supervisor.run(order("b", "die"))
        assert isinstance(result.verdict, Void) and result.verdict.cause is Cause.LOST
        await until(lambda: not processes_with(seconds))


async def test_the_tail_of_long_output_is_kept(engine: Engine):
    async with Supervisor(engine, spec("shouts"), number=1) as supervisor:
        with pytest.raises(WorkerError, match="line 99999") as caught:
            await supervisor.wait_ready()
        assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_without_file_descriptors_fails_to_start_with_the_reason(
    when: str, mark: Mark, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with ProcessEngine() as engine, ControllerSocket(engine.host) as channel:
        request = channel.prepare("worker-1", {})
        before = mark.processes()
        with monkeypatch.context() as patch:
            # Before the process is started, and when its exit cannot be watched.
            patch.setattr(os, "pipe" if when == "before" else "pidfd_open", refuse)
            with pytest.raises(WorkerError, match=r"Too many open files; raise .*ulimit -n"):
                await engine.start(request)
        assert mark.processes() == before
