"""A worker: its tickets, and the ways in which it ends."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest
from worker_client import marking_spec, ready_client, started_client

from plimsoll.core.errors import WorkerError
from plimsoll.core.versions import Version
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.channel import ControllerSocket
from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.messages import (
    Beat,
    Begin,
    Cancel,
    Drain,
    Failed,
    Finished,
    Hello,
    NewVersion,
    Ready,
    Stop,
)
from plimsoll.workers.worker.connection import WorkerConnection, fetch_environment


async def test_a_worker_is_ready_once_its_environment_is_open(tmp_path: Path):
    async with started_client("marking_environment:slow_to_make") as client:
        client.send(Begin(marking_spec(tmp_path)))
        await until(lambda: (tmp_path / "begun").exists())
        await client.receive(Beat)  # heartbeats arrive while the environment is made
        assert not any(isinstance(message, Ready) for message in client.others)
        (tmp_path / "go").touch()
        await client.receive(Ready)
        assert (tmp_path / "made").exists()


async def test_tickets_run_concurrently_and_each_has_one_result(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        began = time.monotonic()
        for number in range(50):
            client.order(f"t{number}", "sleep 0.5")
        answered = [(await client.receive(Finished)).result for _ in range(50)]
        assert time.monotonic() - began < 24  # in sequence: 25
        await client.listen(0.3)
        assert len(client.others) == 50 + 2  # plus a hello and a ready
        assert {result.ticket for result in answered} == {f"t{n}" for n in range(50)}
        assert all(isinstance(result.verdict, Graded) for result in answered)


async def test_a_cancelled_ticket_is_void_after_its_clean_up(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "stubborn 0.5")
        await client.running()
        client.send(Cancel("t", "too old"))
        assert (await client.result("t")).verdict == Void(Cause.CANCELLED, "too old")
        assert (tmp_path / "t.cleaned").exists()


async def test_a_ticket_cancelled_before_its_start_has_a_result(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "sleep 60")
        client.send(Cancel("t", "too old"))
        assert (await client.result("t")).verdict == Void(Cause.CANCELLED, "too old")


async def test_an_exception_of_the_environment_voids_one_ticket(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("bad", "raise overboard")
        assert (await client.result("bad")).verdict == Void(Cause.BUG, "RuntimeError: overboard")
        client.order("good", "sleep 0")
        assert isinstance((await client.result("good")).verdict, Graded)


async def test_an_exception_of_the_environment_is_stored_with_its_traceback(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("bad", "raise overboard", tmp_path / "trial")
        verdict = (await client.result("bad")).verdict
    assert isinstance(verdict, Void) and verdict.cause is Cause.BUG
    assert [fact.where for fact in verdict.evidence] == ["bug.txt"]
    trace = (tmp_path / "trial/bug.txt").read_text()
    assert "Traceback" in trace
    assert "RuntimeError: overboard" in trace


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_not_a_bug(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "overfill words", tmp_path / "trial")
        verdict = (await client.result("t")).verdict
    assert isinstance(verdict, Void) and verdict.cause is Cause.SANDBOX
    assert "is full (No space left on device): make room there" in verdict.reason


async def test_versions_reach_the_environment(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.send(NewVersion(Version(0, 7)))
        client.order("t", "sleep 0.1")
        await client.result("t")
        assert (tmp_path / "t.cleaned").read_text() == "7"


async def test_draining_lets_running_tickets_finish(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "until go")
        await client.running()
        client.send(Drain(grace=60))
        client.order("late", "sleep 0")
        late = await client.result("late")
        assert isinstance(late.verdict, Void) and late.verdict.cause is Cause.LOST
        (tmp_path / "go").touch()
        assert isinstance((await client.result("t")).verdict, Graded)
        assert await client.ended(within=120) == "exit 0"
        assert (tmp_path / "left").exists()


async def test_tickets_that_outlast_the_grace_of_a_drain_are_void_and_cancelled(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "sleep 60")
        await client.running()
        client.send(Drain(grace=0.2))
        verdict = (await client.result("t")).verdict
        assert isinstance(verdict, Void) and verdict.cause is Cause.CANCELLED
        assert await client.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}


async def test_stop_ends_at_once_and_leaves_nothing(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "sleep 60")
        await client.running()
        client.send(Stop())
        assert await client.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}
        verdict = (await client.result("t")).verdict
        assert isinstance(verdict, Void) and verdict.cause is Cause.CANCELLED


async def test_stop_during_the_start_closes_the_environment(tmp_path: Path):
    async with started_client("marking_environment:slow_to_make") as client:
        client.send(Begin(marking_spec(tmp_path)))
        await until(lambda: (tmp_path / "begun").exists())
        client.send(Stop())
        assert await client.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"begun", "left"}


async def test_sigterm_drains_and_reports_it(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path, grace_seconds=3)) as client:
        client.order("short", "sleep 0.3")
        client.order("long", "sleep 60")
        await client.running()
        os.kill(client.pid, signal.SIGTERM)
        assert isinstance((await client.result("short")).verdict, Graded)
        verdict = (await client.result("long")).verdict
        assert isinstance(verdict, Void) and verdict.cause is Cause.LOST
        assert await client.ended(within=120) == "exit 0"
        assert client.beats[-1].full


async def test_a_second_sigterm_ends_at_once(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path, grace_seconds=60)) as client:
        client.order("t", "sleep 60")
        await client.running()
        os.kill(client.pid, signal.SIGTERM)
        await client.receive(Beat, lambda beat: beat.full)  # two signals at once would be merged
        os.kill(client.pid, signal.SIGTERM)
        assert await client.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}


@pytest.mark.parametrize(
    ("maker", "words"),
    [
        (
            "marking_environment:raises_usage_error",
            "no sandboxes here: give the host user namespaces",
        ),
        ("marking_environment:raises_key_error", "KeyError: 'a fault of ours'"),
        ("no_such_module:at_all", "no stand-in no_such_module:at_all"),
        ("marking_environment:nothing", "no stand-in marking_environment:nothing"),
    ],
)
async def test_a_worker_that_fails_to_start_reports_the_reason_and_ends(
    tmp_path: Path, maker: str, words: str
):
    async with started_client(maker) as client:
        client.send(Begin(marking_spec(tmp_path)))
        assert words in (await client.receive(Failed)).reason
        async with asyncio.timeout(60):
            exit = await client.placed.ended()
        assert exit.how == "exit 1"
        assert words in exit.output


async def test_the_secret_key_of_a_worker_is_not_readable(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        secret = client.credentials.secret_key.encode()
        for file in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{client.pid}/{file}").read_bytes()
        assert client.credentials.secret_key not in repr(client.credentials)


async def test_a_worker_with_an_unknown_key_cannot_connect():
    async with ControllerSocket("127.0.0.1") as channel:
        request = channel.prepare("worker-1", {"SECRET": "hush"})
        admitted, forged = (Credentials.make(request.invitation) for _ in range(2))
        request.admit(admitted.public_key)
        async with WorkerConnection(forged) as line, asyncio.timeout(60):
            line.send(Hello())
            assert await line.broken() == "the run does not know this worker's key"
        with pytest.raises(WorkerError, match=r"does not know .* key, at tcp://127\.0\.0\.1:"):
            await fetch_environment(forged)
        channel.forget("worker-1")
        request.admit(admitted.public_key)  # too late: a forgotten worker is not admitted
        async with WorkerConnection(admitted) as line, asyncio.timeout(60):
            assert await line.broken() == "the run does not know this worker's key"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await channel.receive()


@pytest.mark.alone
async def test_a_thousand_sleeping_tickets_do_not_block_the_loop(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        for number in range(1_000):
            client.order(f"t{number}", "sleep 60")
        await client.receive(Beat, lambda beat: beat.counts.get("alive") == 1_000)
        client.order("probe", "probe 2.5")
        probe = await client.result("probe")
        lag = json.loads(probe.trajectory)
        print(f"loop lag p99 {lag['p99'] * 1e3:.1f} ms")
        # 50 ms on an idle machine; this one may be shared.
        assert lag["p99"] < 1
        for number in range(1_000):
            client.send(Cancel(f"t{number}", "enough"))
        for _ in range(1_000):
            await client.receive(Finished)
