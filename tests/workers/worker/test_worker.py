"""A worker: its tickets, and the ways in which it ends."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from worker_in_hand import begun, in_hand, marking_spec

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
    async with begun("marking_environment:slow_to_make") as hand:
        hand.tell(Begin(marking_spec(tmp_path)))
        await until(lambda: (tmp_path / "begun").exists())
        await hand.hear(Beat)  # heartbeats arrive while the environment is made
        assert not any(isinstance(message, Ready) for message in hand.others)
        (tmp_path / "go").touch()
        ready = await hand.hear(Ready)
        assert (tmp_path / "made").exists()
        assert ready.pid == hand.pid


async def test_tickets_run_concurrently_and_each_has_one_result(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        began = time.monotonic()
        for number in range(50):
            hand.order(f"t{number}", "sleep 0.5")
        answered = [(await hand.hear(Finished)).result for _ in range(50)]
        assert time.monotonic() - began < 24  # in sequence: 25
        await hand.listen(0.3)
        assert len(hand.others) == 50 + 2  # plus a hello and a ready
        assert {result.ticket for result in answered} == {f"t{n}" for n in range(50)}
        assert all(isinstance(result.verdict, Graded) for result in answered)


async def test_a_cancelled_ticket_is_void_after_its_clean_up(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("t", "stubborn 0.5")
        await hand.running()
        hand.tell(Cancel("t", "too old"))
        assert (await hand.result("t")).verdict == Void(Cause.CANCELLED, "too old")
        assert (tmp_path / "t.cleaned").exists()


async def test_a_ticket_cancelled_before_its_start_has_a_result(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("t", "sleep 60")
        hand.tell(Cancel("t", "too old"))
        assert (await hand.result("t")).verdict == Void(Cause.CANCELLED, "too old")


async def test_an_exception_of_the_environment_voids_one_ticket(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("bad", "raise overboard")
        assert (await hand.result("bad")).verdict == Void(Cause.BUG, "RuntimeError: overboard")
        hand.order("good", "sleep 0")
        assert isinstance((await hand.result("good")).verdict, Graded)


async def test_an_exception_of_the_environment_is_stored_with_its_traceback(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("bad", "raise overboard", tmp_path / "trial")
        verdict = (await hand.result("bad")).verdict
    assert isinstance(verdict, Void) and verdict.cause is Cause.BUG
    assert [fact.where for fact in verdict.evidence] == ["bug.txt"]
    trace = (tmp_path / "trial/bug.txt").read_text()
    assert "Traceback" in trace
    assert "RuntimeError: overboard" in trace


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_not_a_bug(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("t", "overfill words", tmp_path / "trial")
        verdict = (await hand.result("t")).verdict
    assert isinstance(verdict, Void) and verdict.cause is Cause.SANDBOX
    assert "is full (No space left on device): make room there" in verdict.reason


async def test_versions_reach_the_environment(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.tell(NewVersion(Version(0, 7)))
        hand.order("t", "sleep 0.1")
        await hand.result("t")
        assert (tmp_path / "t.cleaned").read_text() == "7"


async def test_draining_lets_running_tickets_finish(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("t", "until go")
        await hand.running()
        hand.tell(Drain(grace=60))
        hand.order("late", "sleep 0")
        late = await hand.result("late")
        assert isinstance(late.verdict, Void) and late.verdict.cause is Cause.LOST
        (tmp_path / "go").touch()
        assert isinstance((await hand.result("t")).verdict, Graded)
        assert await hand.ended(within=120) == "exit 0"
        assert (tmp_path / "left").exists()


async def test_tickets_that_outlast_the_grace_of_a_drain_are_void_and_cancelled(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("t", "sleep 60")
        await hand.running()
        hand.tell(Drain(grace=0.2))
        verdict = (await hand.result("t")).verdict
        assert isinstance(verdict, Void) and verdict.cause is Cause.CANCELLED
        assert await hand.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}


async def test_stop_ends_at_once_and_leaves_nothing(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        hand.order("t", "sleep 60")
        await hand.running()
        hand.tell(Stop())
        assert await hand.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}
        verdict = (await hand.result("t")).verdict
        assert isinstance(verdict, Void) and verdict.cause is Cause.CANCELLED


async def test_stop_during_the_start_closes_the_environment(tmp_path: Path):
    async with begun("marking_environment:slow_to_make") as hand:
        hand.tell(Begin(marking_spec(tmp_path)))
        await until(lambda: (tmp_path / "begun").exists())
        hand.tell(Stop())
        assert await hand.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"begun", "left"}


async def test_sigterm_drains_and_reports_it(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path, grace_seconds=3)) as hand:
        hand.order("short", "sleep 0.3")
        hand.order("long", "sleep 60")
        await hand.running()
        os.kill(hand.pid, signal.SIGTERM)
        assert isinstance((await hand.result("short")).verdict, Graded)
        verdict = (await hand.result("long")).verdict
        assert isinstance(verdict, Void) and verdict.cause is Cause.LOST
        assert await hand.ended(within=120) == "exit 0"
        assert hand.beats[-1].full


async def test_a_second_sigterm_ends_at_once(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path, grace_seconds=60)) as hand:
        hand.order("t", "sleep 60")
        await hand.running()
        os.kill(hand.pid, signal.SIGTERM)
        await hand.hear(Beat, lambda beat: beat.full)  # two signals at once would be merged
        os.kill(hand.pid, signal.SIGTERM)
        assert await hand.ended(within=120) == "exit 0"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}


@pytest.mark.parametrize(
    ("maker", "words"),
    [
        ("marking_environment:refuses", "no sandboxes here: give the host user namespaces"),
        ("marking_environment:stumbles", "KeyError: 'a fault of ours'"),
        ("no_such_module:at_all", "no stand-in no_such_module:at_all"),
        ("marking_environment:nothing", "no stand-in marking_environment:nothing"),
    ],
)
async def test_a_worker_that_fails_to_start_reports_the_reason_and_ends(
    tmp_path: Path, maker: str, words: str
):
    async with begun(maker) as hand:
        hand.tell(Begin(marking_spec(tmp_path)))
        assert words in (await hand.hear(Failed)).reason
        async with asyncio.timeout(60):
            exit = await hand.placed.ended()
        assert exit.how == "exit 1"
        assert words in exit.output


async def test_the_secret_key_of_a_worker_is_not_readable(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        secret = hand.credentials.secret_key.encode()
        for file in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{hand.pid}/{file}").read_bytes()
        assert hand.credentials.secret_key not in repr(hand.credentials)


async def test_a_worker_with_an_unknown_key_cannot_connect():
    async with ControllerSocket("127.0.0.1") as board:
        opening = board.open("worker-1", {"SECRET": "hush"})
        admitted, forged = (Credentials.make(opening.invitation) for _ in range(2))
        opening.admit(admitted.public_key)
        async with WorkerConnection(forged) as line, asyncio.timeout(60):
            line.send(Hello())
            assert await line.broken() == "the run does not know this worker's key"
        with pytest.raises(WorkerError, match=r"does not know .* key, at tcp://127\.0\.0\.1:"):
            await fetch_environment(forged)
        board.forget("worker-1")
        opening.admit(admitted.public_key)  # too late: a forgotten worker is not admitted
        async with WorkerConnection(admitted) as line, asyncio.timeout(60):
            assert await line.broken() == "the run does not know this worker's key"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await board.receive()


@pytest.mark.alone
async def test_a_thousand_sleeping_tickets_do_not_block_the_loop(tmp_path: Path):
    async with in_hand(marking_spec(tmp_path)) as hand:
        for number in range(1_000):
            hand.order(f"t{number}", "sleep 60")
        await hand.hear(Beat, lambda beat: beat.running == 1_000)
        hand.order("probe", "probe 2.5")
        probe = await hand.result("probe")
        print(f"loop lag p99 {probe.phases['p99'] * 1e3:.1f} ms")
        # 50 ms on an idle machine; this one may be shared.
        assert probe.phases["p99"] < 1
        for number in range(1_000):
            hand.tell(Cancel(f"t{number}", "enough"))
        for _ in range(1_000):
            await hand.hear(Finished)
