"""Heartbeats arrive while the loop is blocked, and no worker outlives its run."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from worker_client import marking_spec, ready_client, started_client

from plimsoll.testing.waiting import until
from plimsoll.workers.channel import ControllerSocket
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.messages import Beat, Begin, Ready
from plimsoll.workers.worker.heartbeat import LoopLag

LONG = 150
"""Seconds for a worker to end, on a busy machine."""


async def test_a_blocked_loop_is_reported_as_lag_while_heartbeats_continue(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "block 4")
        await client.receive(Beat, lambda beat: beat.lag > 0.3)
        before = len(client.beats)
        await client.receive(Beat, lambda beat: beat.lag > 2)
        during = [beat.lag for beat in client.beats[before:] if beat.lag > 0.3]
        assert len(during) > 3, "the heartbeats stopped"
        assert during == sorted(during)
        await client.result("t")
        await client.receive(Beat, lambda beat: beat.lag < 0.3)


@pytest.mark.alone
async def test_a_busy_but_responsive_loop_has_no_lag(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        for number in range(100):
            client.order(f"t{number}", "sleep 60")
        await client.receive(Beat, lambda beat: beat.counts.get("alive") == 100 and beat.lag < 0.5)


async def test_heartbeats_report_live_objects_and_memory(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        for number in range(3):
            client.order(f"t{number}", "until go")
        beat = await client.receive(Beat, lambda beat: beat.counts.get("alive") == 3)
        status = Path(f"/proc/{client.pid}/status").read_text()
        rss = int(status.split("VmRSS:")[1].split()[0]) / 1024
        assert abs(beat.rss_mb - rss) < 20
        (tmp_path / "go").touch()
        await client.receive(Beat, lambda beat: beat.counts.get("alive") == 0)


async def test_heartbeats_continue_without_free_file_descriptors(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        before = len(client.beats)
        client.order("t", "starve 1")
        await client.result("t")
        later = client.beats[before:]
        assert len(later) > 3, "the heartbeats stopped"
        assert all(beat.rss_mb > 0 for beat in later), "heartbeats report the last known figure"
        for _ in range(3):
            await client.receive(Beat)


@pytest.mark.alone
async def test_the_slowest_turn_of_the_loop_is_reported_once():
    loop_lag = LoopLag()
    try:
        await asyncio.sleep(0.1)
        time.sleep(1.2)  # noqa: ASYNC251 - a blocked loop is the point
        await asyncio.sleep(0.1)
        assert loop_lag.lag < 1
        assert loop_lag.take_slowest() > 1
        assert loop_lag.take_slowest() < 1
    finally:
        loop_lag.stop()


async def test_a_worker_of_a_dead_run_cleans_up_and_ends(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "sleep 60")
        await client.running()
        await client.channel.__aexit__(None, None, None)
        assert await client.ended(within=LONG) == "exit 3"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}


async def test_a_worker_with_a_hung_loop_ends_with_its_run(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "block 60")
        await client.receive(Beat, lambda beat: beat.lag > 0.5)
        await client.channel.__aexit__(None, None, None)
        assert await client.ended(within=LONG) == "exit 1"


@pytest.mark.slow
async def test_a_worker_that_hangs_after_its_last_heartbeat_ends_with_its_run(
    tmp_path: Path,
):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "thread 600")
        await client.running()
        await client.channel.__aexit__(None, None, None)
        assert await client.ended(within=LONG) == f"killed by signal {signal.SIGALRM.value}"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}


async def test_a_worker_has_time_for_slow_clean_up(tmp_path: Path):
    async with ready_client(marking_spec(tmp_path)) as client:
        client.order("t", "stubborn 3")
        await client.running()
        await client.channel.__aexit__(None, None, None)
        assert await client.ended(within=LONG) == "exit 3"
        assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}


async def test_a_worker_ends_if_its_starter_dies_during_the_start():
    """As when a Ray actor dies: the run forgets the worker, and never answers it."""
    async with ControllerSocket("127.0.0.1") as channel:
        request = channel.prepare("worker-1", {})
        credentials = Credentials.make(request.invitation)
        request.admit(credentials.public_key)
        argv = [sys.executable, __file__, "--start-only"]
        starter = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_with_test_modules()
        )
        assert starter.stdin is not None and starter.stdout is not None
        starter.stdin.write(msgspec.json.encode(credentials))
        starter.stdin.close()
        worker = int(await starter.stdout.readline())
        starter.kill()
        await starter.wait()
        try:
            os.kill(worker, signal.SIGCONT)
            await until(lambda: not _runs(worker), LONG)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


async def test_a_worker_without_any_message_ends_with_its_run():
    async with started_client() as client:
        await client.channel.__aexit__(None, None, None)
        assert await client.ended(within=LONG) == "exit 3"


@pytest.mark.parametrize("busy", [False, True], ids=["at work", "making its environment"])
def test_killing_the_controller_ends_its_worker(tmp_path: Path, busy: bool):
    """The controller is another process, so that it can be killed."""
    maker = "marking_environment:slow_to_make" if busy else "marking_environment:marking"
    argv = [sys.executable, __file__, str(tmp_path), maker]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env=_with_test_modules()
    ) as controller:
        assert controller.stdout is not None
        worker = int(controller.stdout.readline())
        controller.kill()
    deadline = time.monotonic() + LONG
    while _runs(worker):
        assert time.monotonic() < deadline, "the worker outlives its run"
        time.sleep(0.02)
    assert (tmp_path / "left").exists()


def _with_test_modules() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
    return {**os.environ, "PYTHONPATH": path}


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def _control(folder: Path, maker: str) -> None:
    async with started_client(maker) as client:
        client.send(Begin(marking_spec(folder)))
        if maker.endswith("slow_to_make"):
            await until(lambda: (folder / "begun").exists())
        else:
            await client.receive(Ready)
            client.order("t", "sleep 60")
            await client.running()
        print(client.pid, flush=True)
        await asyncio.sleep(60)


async def _start_only() -> None:
    """Start a worker, and stop it before it runs any of its own code."""
    credentials = msgspec.json.decode(sys.stdin.buffer.read(), type=Credentials)
    worker = ProcessEngine().launch(credentials, {}).where.removeprefix("pid ")
    os.kill(int(worker), signal.SIGSTOP)
    print(worker, flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    if sys.argv[1] == "--start-only":
        asyncio.run(_start_only())
    else:
        asyncio.run(_control(Path(sys.argv[1]), sys.argv[2]))
