"""`plimsoll eval` on Docker: a killed run leaves nothing, and a daemon may restart."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts import need
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint

pytestmark = pytest.mark.timeout(300)
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `plimsoll` in the test's folder; remaining processes are killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll", *args],
            cwd=tmp_path,
            env=os.environ | {"NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def _rows(process: subprocess.Popen[str]) -> dict[str, tuple[object, ...]]:
    out, err = process.communicate(timeout=240)
    assert out, err
    results = json.loads(out)["results"]
    return {row["task"]: (row["verdict"], row["reward"], row["cause"]) for row in results}


def _sleepers(folder: Path, count: int, solve: str, toml: str = "") -> Path:
    """Tasks whose solution takes some time and gets a reward of 1."""
    for number in range(count):
        task = folder / f"task-{number}"
        files = {
            "task.toml": f'schema_version = "1.4"\n{toml}',
            "instruction.md": "Wait.\n",
            "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
            "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": f"#!/bin/bash\n{solve}\n",
        }
        for name, text in files.items():
            (task / name).parent.mkdir(parents=True, exist_ok=True)
            (task / name).write_text(text)
    return folder


async def _of_run(daemon: Daemon, run: str) -> dict[str, int]:
    label = f"plimsoll.run={run}"
    return {
        "containers": len(await daemon.containers(label)),
        "networks": len(await daemon.networks(label)),
        "volumes": len(await daemon.volumes(label)),
    }


async def test_the_next_start_removes_the_remains_of_an_eval_killed_with_sigkill(
    start: Start, docker_daemon: str, tmp_path: Path
):
    _sleepers(tmp_path / "tasks", 16, "sleep 600", '[environment]\nnetwork_mode = "public"\n')
    (tmp_path / "daemon.toml").write_text(f'[docker]\nhost = "{docker_daemon}"\n')
    common = ("--backend", "docker", "--config", "daemon.toml")
    killed = start("eval", "tasks", *common, "--concurrency", "16", "--out", "killed-run")
    async with Daemon(find_endpoint(docker_daemon, None, {})) as daemon:
        deadline = time.monotonic() + 120
        while (await _of_run(daemon, "killed-run"))["containers"] < 16:
            assert time.monotonic() < deadline, killed.communicate(timeout=1)
            assert killed.poll() is None, killed.communicate()
            await asyncio.sleep(0.2)
        assert (await _of_run(daemon, "killed-run"))["networks"] == 1
        killed.kill()
        killed.wait()
        _sleepers(tmp_path / "next", 1, "true")
        following = start("eval", "next", *common, "--out", "next-run", "--json")
        assert _rows(following) == {"task-0": ("graded", 1.0, None)}
        none = {"containers": 0, "networks": 0, "volumes": 0}
        assert await _of_run(daemon, "killed-run") == none
        assert await _of_run(daemon, "next-run") == none


@pytest.mark.parametrize(("command", "pool"), [("eval", "none"), ("validate", "fresh")])
def test_a_container_that_cannot_be_removed_hides_no_result(
    start: Start, dockerd, tmp_path: Path, command: str, pool: str
):
    # The file is immutable afterwards, so the container cannot be removed.
    _sleepers(tmp_path / "tasks", 1, "while echo x >> /stuck; do sleep 0.1; done")
    (tmp_path / "daemon.toml").write_text(f'[docker]\nhost = "{dockerd.url}"\n')
    options = ("--backend", "docker", "--config", "daemon.toml", "--pool", pool, "--json")
    into = ("--out", "run") if command == "eval" else ()
    running = start(command, "tasks", *options, *into)
    stuck: list[Path] = []
    try:
        deadline = time.monotonic() + 120
        while not stuck:
            assert time.monotonic() < deadline
            assert running.poll() is None, running.communicate()
            time.sleep(0.2)
            stuck = list(dockerd.folder.glob("data-root/overlay2/*/diff/stuck"))
        frozen = subprocess.run(["chattr", "+i", *stuck], capture_output=True, text=True)
        need("immutable files", frozen.stderr.strip() or None)
        out, err = running.communicate(timeout=240)
    finally:
        subprocess.run(["chattr", "-i", *stuck], check=False)
    (row,) = json.loads(out)["results"]
    assert row["reward"] == 1.0 if command == "eval" else row["oracle"][0]["reward"] == 1.0
    assert re.search(r"warning: .*could not be removed.*`plimsoll clean \S+` removes the rest", err)
    assert running.returncode == (0 if command == "eval" else 1)  # the nop gets a reward, too


def test_a_daemon_restart_voids_running_trials_and_their_retries_finish(
    start: Start, dockerd, tmp_path: Path
):
    _sleepers(tmp_path / "tasks", 12, "sleep 4")
    # One trial ends at once; the others are running then.
    _sleepers(tmp_path / "tasks", 1, "true")
    (tmp_path / "daemon.toml").write_text(f'[docker]\nhost = "{dockerd.url}"\n')
    options = ("--backend", "docker", "--config", "daemon.toml", "--concurrency", "3")
    running = start("eval", "tasks", *options, "--out", "run", "--json")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run/trials").glob("*/verdict.json")):
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.2)
    dockerd.restart()
    out, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    results = json.loads(out)["results"]
    assert [row["verdict"] for row in results] == ["graded"] * 12
    tries = map(json.loads, (tmp_path / "run/results.jsonl").read_text().splitlines())
    void = [row for row in tries if row["verdict"] == "void"]
    assert 1 <= len(void) <= 3, void
    for row in void:
        assert row["cause"] == "sandbox"
        # A trial that was about to start, while the daemon was unreachable.
        assert re.search("restart|cannot be reached", row["reason"]), row["reason"]


async def test_an_interrupted_eval_removes_its_containers_on_a_slow_daemon(
    start: Start, dockerd, tmp_path: Path
):
    _sleepers(tmp_path / "tasks", 3, "sleep 600", '[environment]\nnetwork_mode = "public"\n')
    (tmp_path / "daemon.toml").write_text(f'[docker]\nhost = "{dockerd.url}"\n')
    options = ("--backend", "docker", "--config", "daemon.toml", "--concurrency", "3")
    running = start("eval", "tasks", *options, "--out", "run", "--json")
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "run/trials").glob("*/agent"))) < 3:
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        await asyncio.sleep(0.2)
    dockerd.signal(signal.SIGSTOP)
    running.send_signal(signal.SIGINT)
    await asyncio.sleep(6)
    dockerd.signal(signal.SIGCONT)
    out, err = await asyncio.to_thread(running.communicate, timeout=120)
    assert running.returncode == 130, err
    assert json.loads(out)["results"] == []
    assert "removing the sandboxes of run; press Ctrl-C again to leave them" in err
    async with Daemon(find_endpoint(dockerd.url, None, {})) as daemon:
        none = {"containers": 0, "networks": 0, "volumes": 0}
        assert await _of_run(daemon, "run") == none
