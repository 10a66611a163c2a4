"""The supervisor, with every engine."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from scripted_environment import order, spec
from supervised import Mark, options, pid_of

from plimsoll.core.errors import WorkerError
from plimsoll.core.versions import Version
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.controller.roster import WorkerState
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.engines.protocol import Engine
from plimsoll.workers.messages import Result


def check_void(result: Result, cause: Cause, *words: str) -> None:
    assert isinstance(result.verdict, Void), result
    assert result.verdict.cause is cause, result
    for word in words:
        assert word in result.verdict.reason
    assert "\n" not in result.verdict.reason


def kill(supervisor: Supervisor, sign: signal.Signals) -> str:
    """Send a signal to the most loaded worker, and return its name."""
    worst = max(supervisor.status(), key=lambda status: status.running)
    assert worst.phase is WorkerState.READY
    os.kill(pid_of(worst.where), sign)
    return worst.worker


async def begin(supervisor: Supervisor, *orders: tuple[str, str]) -> list[asyncio.Task[Result]]:
    """Start orders, and wait until workers run them."""
    tasks = [asyncio.create_task(supervisor.run(order(*what))) for what in orders]
    await until(lambda: sum(s.running for s in supervisor.status()) == len(orders), 60)
    await asyncio.sleep(0.1)
    return tasks


async def ask(supervisor: Supervisor, ticket: str, task: str) -> str:
    result = await supervisor.run(order(ticket, task))
    assert isinstance(result.verdict, Graded), result
    return result.trajectory


async def test_every_order_gets_its_own_result(engine: Engine):
    async with Supervisor(engine, spec(concurrency=4), number=2) as supervisor:
        await supervisor.wait_ready()
        orders = [order(f"t{n}", "sleep 0.01") for n in range(40)]
        results = await asyncio.gather(*(supervisor.run(one) for one in orders))
        assert [result.ticket for result in results] == [one.ticket for one in orders]
        assert all(isinstance(result.verdict, Graded) for result in results)
        assert sum(status.finished for status in supervisor.status()) == 40


async def test_a_killed_worker_is_detected_and_replaced(engine: Engine):
    limits = options(dead_after=600)
    async with Supervisor(engine, spec(), number=1, options=limits) as supervisor:
        first, second = await begin(supervisor, ("a", "sleep 600"), ("b", "sleep 600"))
        worker = kill(supervisor, signal.SIGKILL)
        check_void(await asyncio.wait_for(first, 60), Cause.LOST, worker, "killed by signal 9")
        check_void(await second, Cause.LOST)
        assert await ask(supervisor, "c", "pid")
        assert worker not in [status.worker for status in supervisor.status()]


async def test_a_suspended_worker_counts_as_dead_and_leaves_nothing(engine: Engine, mark: Mark):
    limits = options(dead_after=2.5)
    async with Supervisor(engine, spec(), number=1, options=limits) as supervisor:
        (task,) = await begin(supervisor, ("a", "sleep 600"))
        before = pid_of(supervisor.status()[0].where)
        kill(supervisor, signal.SIGSTOP)
        check_void(await task, Cause.LOST, "no heartbeat for 2")
        assert int(await ask(supervisor, "b", "pid")) != before
        assert before not in mark.processes()


async def test_time_that_the_controller_was_suspended_does_not_count_against_its_workers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    loop = asyncio.get_running_loop()
    clock, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: clock() + passed[0])
    async with Supervisor(engine, spec(), number=1, options=options()) as supervisor:
        (task,) = await begin(supervisor, ("a", "sleep 0.5"))
        passed[0] = 3600.0
        assert isinstance((await task).verdict, Graded)
        (status,) = supervisor.status()
        assert (status.worker, status.finished) == ("worker-1", 1)


async def test_a_hung_loop_is_detected_despite_heartbeats(engine: Engine):
    limits = options(hung_after=2.5)
    async with Supervisor(engine, spec(), number=1, options=limits) as supervisor:
        (task,) = await begin(supervisor, ("a", "block 600"))
        check_void(await task, Cause.LOST, "its event loop is blocked")
        assert await ask(supervisor, "b", "pid")


async def test_a_busy_worker_does_not_count_as_dead(engine: Engine):
    limits = options(dead_after=2.5, hung_after=60.0)
    async with Supervisor(engine, spec(), number=1, options=limits) as supervisor:
        result = await supervisor.run(order("a", "block 4.5"))
        assert isinstance(result.verdict, Graded)


async def test_a_failing_environment_is_reported_at_once(engine: Engine):
    async with Supervisor(engine, spec("broken"), number=2) as supervisor:
        with pytest.raises(WorkerError, match="this environment cannot be made"):
            await supervisor.wait_ready()
        with pytest.raises(WorkerError, match="this environment cannot be made"):
            await supervisor.run(order("a"))


async def test_a_failed_start_is_reported_before_the_worker_ends(engine: Engine):
    async with Supervisor(engine, spec("broken_and_slow"), number=1) as supervisor:
        with pytest.raises(WorkerError, match="this environment cannot be made"):
            await supervisor.wait_ready()
        assert supervisor.status(), "the worker has ended"


async def test_the_error_of_a_worker_that_dies_at_its_start_has_its_last_output(engine: Engine):
    async with Supervisor(engine, spec("dies_at_start"), number=1) as supervisor:
        with pytest.raises(WorkerError, match=r"(?s)exit 9.*the ship went down"):
            await supervisor.wait_ready()


async def test_a_missing_environment_is_reported_at_once(engine: Engine):
    async with Supervisor(engine, spec("absent"), number=1) as supervisor:
        with pytest.raises(WorkerError, match="no stand-in scripted_environment:absent"):
            await supervisor.wait_ready()


async def test_a_crash_loop_stops_the_run_with_the_last_output(engine: Engine):
    async with Supervisor(engine, spec(), number=1, options=options(deaths=3)) as supervisor:
        for n in range(3):
            check_void(await supervisor.run(order(f"t{n}", f"die words {n}")), Cause.LOST, "exit 7")
        with pytest.raises(WorkerError, match=r"(?s)3 deaths in.*exit 7.*words 2"):
            await supervisor.failed()
        with pytest.raises(WorkerError, match="die repeatedly"):
            await supervisor.run(order("t4"))
        assert supervisor.free == 0


async def test_a_full_worker_is_replaced_before_it_finishes_its_tickets(
    engine: Engine, tmp_path: Path
):
    limited = spec(memory_mb=300, concurrency=4)
    async with Supervisor(engine, limited, number=1, options=options()) as supervisor:
        before = await ask(supervisor, "a", "pid")
        running = asyncio.create_task(supervisor.run(order("b", f"until {tmp_path}/go")))
        await supervisor.run(order("c", "hold 400"))
        await until(
            lambda: WorkerState.FULL in [status.phase for status in supervisor.status()], 60
        )
        assert await ask(supervisor, "d", "pid") != before
        assert not running.done()
        (tmp_path / "go").touch()
        assert isinstance((await running).verdict, Graded)
        await until(lambda: len(supervisor.status()) == 1, 60)


async def test_a_memory_limit_below_an_idle_worker_is_reported(engine: Engine):
    tight = spec(memory_mb=1)
    async with Supervisor(engine, tight, number=1, options=options()) as supervisor:
        waiting = [asyncio.create_task(supervisor.run(order(f"t{n}", "sleep 3"))) for n in range(4)]
        with pytest.raises(WorkerError, match=r"before its first ticket; raise memory_mb, .* is 1"):
            await asyncio.wait_for(supervisor.wait_ready(), 60)
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, WorkerError)


async def test_a_memory_limit_exceeded_by_the_first_tickets_is_reported(
    engine: Engine, caplog: pytest.LogCaptureFixture
):
    tight = spec(memory_mb=300, concurrency=4)
    async with Supervisor(engine, tight, number=1, options=options()) as supervisor:
        for ticket in ("a", "b"):
            await supervisor.run(order(ticket, "hold 400"))
            await until(lambda: [s.phase for s in supervisor.status()] == [WorkerState.READY], 60)
            await until(lambda: supervisor.status()[0].finished == 0, 60)
    warnings = [
        r.getMessage() for r in caplog.records if "memory_mb is 300; raise it" in r.getMessage()
    ]
    assert len(warnings) == 1, "the warning is logged once"
    assert "is replaced after 1 tickets" in warnings[0]


async def test_a_slow_loop_turn_is_shown_after_it_has_ended(engine: Engine):
    async with Supervisor(engine, spec(), number=1, options=options()) as supervisor:
        await supervisor.wait_ready()
        await supervisor.run(order("a", "block 0.8"))
        # Two heartbeats later the current lag is small again.
        await asyncio.sleep(0.5)
        await until(lambda: supervisor.status()[0].lag > 0.5)


async def test_a_drain_waits_for_tickets_that_end_in_time_and_cancels_the_rest(
    engine: Engine, mark: Mark
):
    async with Supervisor(engine, spec(), number=1, options=options()) as supervisor:
        soon, never = await begin(supervisor, ("a", "sleep 0.5"), ("b", "sleep 600"))
        waiting = asyncio.create_task(supervisor.run(order("c")))
        await asyncio.sleep(0)
        worker = pid_of(supervisor.status()[0].where)
        await supervisor.drain(1.5)
        assert isinstance((await soon).verdict, Graded)
        check_void(await never, Cause.CANCELLED)
        check_void(await waiting, Cause.CANCELLED)
        check_void(await supervisor.run(order("d")), Cause.CANCELLED)
        assert supervisor.status() == []
        assert worker not in mark.processes()


async def test_leaving_cancels_running_tickets_and_ends_all_workers(engine: Engine, mark: Mark):
    async with Supervisor(engine, spec(), number=2, options=options()) as supervisor:
        tasks = await begin(supervisor, ("a", "sleep 600"), ("b", "sleep 600"))
        workers = {pid_of(status.where) for status in supervisor.status() if status.running}
        assert workers
    for task in tasks:
        check_void(await task, Cause.CANCELLED)
    assert not workers & mark.processes().keys()


async def test_leaving_does_not_wait_for_workers_that_have_not_started(engine: Engine):
    async with Supervisor(engine, spec(), number=2, options=options()):
        left = time.monotonic()
    assert time.monotonic() - left < 10


async def test_a_cancelled_ticket_is_void_and_frees_its_slot(engine: Engine):
    async with Supervisor(engine, spec(), number=1, options=options()) as supervisor:
        first, second = await begin(supervisor, ("a", "sleep 600"), ("b", "sleep 600"))
        waiting = asyncio.create_task(supervisor.run(order("c")))
        await asyncio.sleep(0)
        assert supervisor.free == 0
        for ticket in ("a", "c", "unheard of"):
            supervisor.cancel(ticket, "too old")
        check_void(await first, Cause.CANCELLED, "too old")
        check_void(await waiting, Cause.CANCELLED, "too old")
        second.cancel()
        await until(lambda: supervisor.free == 2, 60)


async def test_current_and_later_workers_know_the_version(engine: Engine):
    async with Supervisor(engine, spec(), number=1, options=options()) as supervisor:
        supervisor.set_version(Version(0, 3))
        assert await ask(supervisor, "a", "version") == "3"
        supervisor.set_version(Version(0, 4))
        assert await ask(supervisor, "b", "version") == "4"
        await supervisor.run(order("c", "die"))
        assert await ask(supervisor, "d", "version") == "4"


async def test_current_and_later_workers_know_of_a_pause(engine: Engine):
    async with Supervisor(engine, spec(), number=1, options=options()) as supervisor:
        assert await ask(supervisor, "a", "paused") == "(False, False)"
        supervisor.set_paused(True, drains=True)
        assert await ask(supervisor, "b", "paused") == "(True, True)"
        await supervisor.run(order("c", "die"))
        assert await ask(supervisor, "d", "paused") == "(True, True)"
        supervisor.set_paused(False)
        assert await ask(supervisor, "e", "paused") == "(False, False)"


async def test_workers_have_the_variables_named_by_the_run(engine: Engine):
    named = spec(environment={"PLIMSOLL_NAMED": "by the run"})
    async with Supervisor(engine, named, number=1) as supervisor:
        assert await ask(supervisor, "a", "variable PLIMSOLL_NAMED") == "by the run"


async def test_a_ticket_does_not_run_twice_concurrently(engine: Engine):
    async with Supervisor(engine, spec(), number=1) as supervisor:
        await begin(supervisor, ("a", "sleep 600"))
        with pytest.raises(ValueError, match="runs already"):
            await supervisor.run(order("a"))
