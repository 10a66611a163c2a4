"""Announced orders on their way to workers, and sandbox reports on their way back."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from scripted_environment import order, spec
from supervised import options, pid_of
from worker_client import marking_spec, ready_client

from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Void
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.engines.protocol import Engine
from plimsoll.workers.messages import Drain, Expect, Kind, SandboxReport

A = Kind("a", "t")


def announced(result: object) -> dict[str, int]:
    return json.loads(result.trajectory)  # type: ignore[attr-defined]


async def test_the_next_orders_are_announced_to_workers_and_withdrawn(engine: Engine):
    async with Supervisor(engine, spec(concurrency=2), number=1) as supervisor:
        await supervisor.wait_ready()
        assert supervisor.slots == 2
        supervisor.expect([A, A, A])
        assert announced(await supervisor.run(order("t1", "coming"))) == {"a": 2}
        supervisor.expect([])
        assert announced(await supervisor.run(order("t2", "coming"))) == {}


async def test_of_equally_busy_workers_the_one_that_expects_an_order_gets_it(engine: Engine):
    asked = Kind("coming", "t")
    async with Supervisor(engine, spec(concurrency=2), number=2) as supervisor:
        await until(lambda: supervisor.slots == 4, 60)
        supervisor.expect([A, asked])
        assert announced(await supervisor.run(order("t1", "coming"))) == {"coming": 1}


async def test_a_warning_of_two_workers_is_logged_once_before_the_tickets_end(
    engine: Engine, caplog: pytest.LogCaptureFixture
):
    async with Supervisor(engine, spec(concurrency=1), number=2) as supervisor:
        await until(lambda: supervisor.slots == 2, 60)
        # Both at once, so that each worker runs one.
        both = [supervisor.run(order(f"t{n}", "warn no limit on storage")) for n in range(2)]
        await asyncio.gather(*both)
        assert {status.finished for status in supervisor.status()} == {1}
        assert supervisor.reports.warnings == ["no limit on storage"]
    assert caplog.messages.count("no limit on storage") == 1


async def test_measurements_of_a_killed_worker_are_not_lost():
    limits = options(dead_after=600)
    async with Supervisor(ProcessEngine(), spec(), number=1, options=limits) as supervisor:
        await supervisor.run(order("t1", "warn it is slow"))
        lost = asyncio.create_task(supervisor.run(order("t2", "sleep 600")))
        await until(lambda: supervisor.status()[0].running == 1)
        os.kill(pid_of(supervisor.status()[0].where), signal.SIGKILL)
        assert isinstance((await lost).verdict, Void)
        await supervisor.run(order("t3", "warn it is slow"))
        assert supervisor.reports.meter.stats(Reuse.FRESH).hits == 2


async def test_a_draining_worker_prewarms_nothing(tmp_path: Path):
    expects = tmp_path / "expects"
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t1", "until go")
        client.send(Expect((A, A, A)))
        await until(lambda: expects.exists() and expects.read_text() == "3")
        client.send(Drain(60))
        await until(lambda: expects.read_text() == "0")
        # An announcement that was already in flight changes nothing.
        client.send(Expect((A, A, A)))
        (tmp_path / "go").touch()
        await client.result("t1")
        await client.ended(30)
    assert expects.read_text() == "0"


async def test_a_worker_ended_by_a_signal_prewarms_nothing(tmp_path: Path):
    expects = tmp_path / "expects"
    async with ready_client(marking_spec(tmp_path, grace_seconds=60)) as client:
        client.order("t1", "until go")
        client.send(Expect((A, A, A)))
        await until(lambda: expects.exists() and expects.read_text() == "3")
        os.kill(client.pid, signal.SIGTERM)
        await until(lambda: expects.read_text() == "0")
        (tmp_path / "go").touch()
        await client.ended(30)


async def test_reports_are_sent_while_tickets_run_and_after_the_environment_is_closed(
    tmp_path: Path,
):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t1", "until go")
        (tmp_path / "news").write_text("no limit on storage")
        assert (await client.receive(SandboxReport)).warnings == ("no limit on storage",)
        client.send(Drain(0))
        assert (await client.receive(SandboxReport)).warnings == ("its environment was left",)
        await client.ended(30)
