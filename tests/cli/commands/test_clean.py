"""`plimsoll clean`: items that it removes, refuses to remove, and leaves alone."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from parts import need
from plimsoll.core.ids import Labels, Owner, short_id
from plimsoll.ledger.journal.location import FILE as LEDGER
from plimsoll.runs.files.directory import CONFIG
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.local.host.resources import staging_path
from sandbox_owner import SandboxOwner, running_owner

Plimsoll = Callable[..., CompletedProcess[str]]
Start = Callable[..., SandboxOwner]


@pytest.fixture
def clean(plimsoll: Plimsoll, own_home: Path) -> Plimsoll:
    """Runs `plimsoll clean` on the local backend in the test's home."""
    return lambda *args: plimsoll("clean", "--backend", "local", *args)


@pytest.fixture
def own_home(tmp_path: Path) -> Path:
    (tmp_path / "plimsoll.toml").write_text(f'[local]\nhome = "{tmp_path}/home"\n')
    return tmp_path / "home"


@pytest.fixture
def start_owner(own_home: Path, sandboxes: None) -> Iterator[Start]:
    """Starts processes with sandboxes. Each process is a run."""
    with ExitStack() as started:
        yield lambda run, number=2: started.enter_context(running_owner(own_home, run, number))


def _remaining(home: Path) -> set[str]:
    return {folder.name for folder in (home / "sandboxes").iterdir()}


def test_leftovers_of_a_killed_run_are_removed_and_listed(
    clean: Plimsoll, start_owner: Start, own_home: Path
):
    killed, other = start_owner("night-run", 3), start_owner("day-run", 1)
    killed.kill()
    ended = clean("night-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    *lines, total = ended.stdout.splitlines()
    assert len(lines) == 3
    for number, name in enumerate(killed.ids, 1):
        whose = f"run night-run, task.{number}; pid {killed.process.pid} on"
        assert sum(f"removed       local sandbox {name}  ({whose}" in line for line in lines) == 1
    assert total == "removed 3 sandboxes"
    assert _remaining(own_home) == set(other.ids)
    assert other.running(1)


def test_a_live_run_is_refused_and_keeps_running(
    clean: Plimsoll, start_owner: Start, own_home: Path
):
    run = start_owner("night-run")
    ended = clean("night-run")
    assert (ended.returncode, ended.stdout) == (2, "")
    host = os.uname().nodename
    assert f"run night-run is running: pid {run.process.pid} on {host};" in ended.stderr
    assert "--force" in ended.stderr
    assert _remaining(own_home) == set(run.ids)
    assert run.running(1)
    assert run.process.poll() is None


def test_force_ends_a_live_run(clean: Plimsoll, start_owner: Start, own_home: Path):
    run, other = start_owner("night-run"), start_owner("day-run")
    ended = clean("night-run", "--force")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "removed 2 sandboxes"
    assert run.running(1) == run.running(2) == []
    assert _remaining(own_home) == set(other.ids)
    assert other.running(1)


def test_force_spares_another_run_of_the_same_name(
    clean: Plimsoll, start_owner: Start, own_home: Path, tmp_path: Path
):
    other = start_owner("night-run")
    ours = tmp_path / "here/night-run"
    ours.mkdir(parents=True)
    (ours / CONFIG).write_text(f'[local]\nhome = "{own_home}"\n')
    (ours / LEDGER).touch()
    ended = clean("here/night-run", "--force")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "another run called night-run is running" in ended.stderr
    assert f"pid {other.process.pid} on" in ended.stderr
    assert _remaining(own_home) == set(other.ids)
    assert other.running(1)
    other.kill()
    assert clean("here/night-run", "--force").returncode == 0
    assert _remaining(own_home) == set()


def test_a_partial_run_name_is_refused(clean: Plimsoll, start_owner: Start, own_home: Path):
    run = start_owner("night-run", 1)
    run.kill()
    for name in ("night", "night-ru", "night-*", "runs/night-run", "", " "):
        for more in ((), ("--force",)):
            ended = clean(name, *more)
            assert (ended.returncode, ended.stdout) == (2, "")
            said = f"no run is called {name!r}" if name.strip() else "the name of the run is empty"
            assert ended.stderr == f"plimsoll: {said}; runs here: night-run\n"
    assert _remaining(own_home) == set(run.ids)


@pytest.mark.parametrize("name", ["night-eval", "runs/night-eval", "runs/night-eval/"])
def test_an_evaluation_can_be_named_by_its_directory(
    clean: Plimsoll, own_home: Path, tmp_path: Path, name: str
):
    folder = tmp_path / "runs/night-eval"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(f'[local]\nhome = "{own_home}"\n')
    (folder / LEDGER).touch()
    _write_leftover(own_home, "night-eval")
    other = _write_leftover(own_home, "other")
    ended = clean(name)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "removed 1 sandbox"
    assert _remaining(own_home) == {other}
    again = clean(name)
    assert (again.returncode, again.stdout) == (0, "nothing to remove on local\n")


def test_similar_names_are_listed_first_and_long_lists_are_cut(clean: Plimsoll, own_home: Path):
    for number in range(30):
        _write_leftover(own_home, f"eval-{number:02}")
    _write_leftover(own_home, "other")
    said = clean("othr").stderr
    assert said == "plimsoll: no run is called 'othr'; runs here: other and 30 more\n"
    said = clean("eval-1").stderr
    assert "runs here: eval-10, eval-11" in said
    assert "and 21 more" in said


def test_without_any_run_the_message_says_so(clean: Plimsoll, own_home: Path):
    ended = clean("night-run")
    assert ended.returncode == 2
    assert "no run is called 'night-run'; no run has anything here" in ended.stderr


@pytest.mark.parametrize(
    "args",
    [(), ("a", "--all"), ("a", "--expired"), ("--all", "--expired"), ("a", "--all", "--expired")],
)
def test_exactly_one_of_run_expired_and_all_is_required(
    clean: Plimsoll, own_home: Path, args: tuple[str, ...]
):
    ended = clean(*args)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "the name of a RUN, --expired or --all" in ended.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--all", "--force"), "--force needs the name of a RUN"),
        (("--expired", "--yes"), "--yes needs --all"),
        (("a", "--yes"), "--yes needs --all"),
    ],
)
def test_options_that_do_not_apply_are_refused(
    clean: Plimsoll, own_home: Path, args: tuple[str, ...], says: str
):
    ended = clean(*args)
    assert ended.returncode == 2
    assert says in ended.stderr


def test_a_dry_run_lists_the_leftovers_and_removes_nothing(
    clean: Plimsoll, start_owner: Start, own_home: Path
):
    run = start_owner("night-run")
    for args in (("night-run",), ("--all",)):
        ended = clean(*args, "--dry-run")
        assert ended.returncode == 0
        assert ended.stdout.count("would remove  local sandbox") == 2
        assert f"pid {run.process.pid} on {os.uname().nodename}" in ended.stdout
        assert ended.stdout.splitlines()[-1] == "would remove 2 sandboxes"
    assert "needs --yes" in ended.stdout
    assert _remaining(own_home) == set(run.ids)
    assert run.running(1)


def test_expired_removes_the_same_sandboxes_as_the_reaper(
    clean: Plimsoll, start_owner: Start, own_home: Path
):
    killed, living_on = start_owner("killed"), start_owner("living")
    killed.kill()
    late = _write_leftover(
        own_home, "late", owner=Owner("elsewhere~00000000", 7, "b:1"), seconds=-1
    )
    far = _write_leftover(own_home, "far", owner=Owner("elsewhere~00000000", 7, "b:1"))
    ended = clean("--expired")
    assert ended.returncode == 0
    assert all(name in ended.stdout for name in (late, *killed.ids))
    assert ended.stdout.splitlines()[-1] == "removed 3 sandboxes"
    assert _remaining(own_home) == {far, *living_on.ids}
    again = clean("--expired")
    assert (again.returncode, again.stdout) == (0, "nothing to remove on local\n")


def test_all_removes_sandboxes_of_live_runs_only_with_yes(
    clean: Plimsoll, start_owner: Start, own_home: Path
):
    run = start_owner("night-run")
    dead = _write_leftover(own_home, "old")
    ended = clean("--all")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "running runs (night-run) would lose 2 sandboxes; --yes" in ended.stderr
    assert _remaining(own_home) == {dead, *run.ids}
    ended = clean("--all", "--yes")
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1] == "removed 3 sandboxes"
    assert _remaining(own_home) == set()
    assert run.running(1) == run.running(2) == []


def test_all_needs_no_confirmation_without_live_runs(clean: Plimsoll, own_home: Path):
    _write_leftover(own_home, "old")
    assert clean("--all").returncode == 0
    assert _remaining(own_home) == set()


def test_all_removes_unfinished_sandboxes_of_dead_owners_only(
    clean: Plimsoll, plimsoll: Plimsoll, own_home: Path
):
    folder = own_home / "sandboxes"
    dead = Owner(os.uname().nodename, 2**22 - 1, "never")
    making, half_made = (staging_path(folder / short_id(), one) for one in (this_process(), dead))
    for path in (making, half_made):
        path.mkdir(parents=True)
    assert "0 runs · 2 sandboxes" in plimsoll("ps", "--backend", "local").stdout
    ended = clean("--all")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "removed 1 sandbox")
    assert _remaining(own_home) == {making.name}


@pytest.mark.parametrize(("answer", "stays"), [(b"n\n", True), (b"y\n", False)])
def test_on_a_terminal_all_asks_for_confirmation(
    start_owner: Start, own_home: Path, tmp_path: Path, answer: bytes, stays: bool
):
    run = start_owner("night-run", 1)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "plimsoll", "clean", "--all", "--backend", "local"]
    os.write(ours, answer)
    ended = subprocess.run(
        command, stdin=theirs, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    os.close(ours)
    os.close(theirs)
    assert ended.returncode == 0, ended.stderr
    assert "running runs (night-run) would lose 1 sandbox, and their trials" in ended.stderr
    assert _remaining(own_home) == (set(run.ids) if stays else set())
    assert ("nothing was removed" in ended.stderr) is stays


def test_a_run_on_another_host_counts_as_alive(clean: Plimsoll, own_home: Path):
    name = _write_leftover(own_home, "far", owner=Owner("elsewhere~00000000", 7, "b:1"))
    ended = clean("far")
    assert ended.returncode == 2
    assert "pid 7 on elsewhere~00000000, which is another host" in ended.stderr
    assert _remaining(own_home) == {name}
    assert clean("far", "--force").returncode == 0
    assert _remaining(own_home) == set()


def test_json_lists_the_removed_sandboxes(clean: Plimsoll, own_home: Path):
    name = _write_leftover(own_home, "old")
    ended = clean("old", "--json")
    report = json.loads(ended.stdout)
    assert [item["id"] for item in report["removed"]] == [name]
    assert (report["failed"], report["left"], report["unreached"]) == ([], [], {})
    assert not report["dry_run"]


def test_a_sandbox_that_cannot_be_removed_is_named_and_exits_1(clean: Plimsoll, own_home: Path):
    stuck, gone = _write_leftover(own_home, "old"), _write_leftover(own_home, "old")
    folder = own_home / "sandboxes" / stuck / "mounted"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    need("mount", done.stderr.strip() or "it failed" if done.returncode else None)
    try:
        ended = clean("old")
    finally:
        # A sandbox is moved aside before its removal, together with the mount in it.
        (mounted,) = (own_home / "sandboxes").glob(f"*{stuck}*/mounted")
        subprocess.run(["umount", str(mounted)], check=True)
    assert ended.returncode == 1
    assert f"not removed   local sandbox {stuck}" in ended.stdout
    assert f"removed       local sandbox {gone}" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "removed 1 sandbox · 1 could not be removed"


@pytest.mark.parametrize(
    ("backend", "docker", "code"),
    [
        ("docker", 'host = "unix:///nowhere/docker.sock"', 1),
        ("local", 'host = "unix:///nowhere/docker.sock"', 0),
    ],
)
def test_an_unreachable_daemon_of_the_run_exits_1(
    plimsoll: Plimsoll, own_home: Path, tmp_path: Path, backend: str, docker: str, code: int
):
    directory = tmp_path / "runs" / "night-run"
    directory.mkdir(parents=True)
    home = (tmp_path / "plimsoll.toml").read_text()
    (directory / CONFIG).write_text(f'{home}[run]\nbackend = "{backend}"\n[docker]\n{docker}\n')
    (directory / LEDGER).write_bytes(b"")
    for more in ((), ("--json",)):
        ended = plimsoll("clean", "night-run", *more)
        assert ended.returncode == code, ended.stderr
        assert "there is no Docker daemon at unix:///nowhere/docker.sock" in ended.stdout


@pytest.mark.parametrize("args", [("--all",), ("--expired",), ("old",)])
def test_an_unreachable_configured_daemon_exits_1(
    plimsoll: Plimsoll, own_home: Path, tmp_path: Path, args: tuple[str, ...]
):
    _write_leftover(own_home, "old")
    with (tmp_path / "plimsoll.toml").open("a") as file:
        file.write('[docker]\nhost = "unix:///nowhere/docker.sock"\n')
    ended = plimsoll("clean", *args)
    assert ended.returncode == 1
    assert "docker was not reached: there is no Docker daemon" in ended.stdout
    assert _remaining(own_home) == set()  # the local sandbox is removed nevertheless


def test_a_host_without_docker_is_not_a_failure(
    plimsoll: Plimsoll, own_home: Path, monkeypatch: pytest.MonkeyPatch
):
    if Path("/var/run/docker.sock").exists():
        pytest.skip("docker: there is a daemon in the usual place")
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(own_home))
    _write_leftover(own_home, "old")
    ended = plimsoll("clean", "old")
    assert ended.returncode == 0, ended.stderr
    assert "docker was not reached: no Docker daemon was found" in ended.stdout


def _write_leftover(
    home: Path, run: str, *, owner: Owner | None = None, seconds: float = 600
) -> str:
    """Write the leftover of a dead process, or a sandbox of another host. Returns its id."""
    dead = Owner(os.uname().nodename, 2**22 - 1, "never")
    name, of = short_id(), owner or dead
    folder = home / "sandboxes" / name
    (folder / "up").mkdir(parents=True)
    labels = {"run": run, "ticket": "task.1", "expires": time.time() + seconds}
    whose = {"host": of.host, "pid": of.pid, "started": of.started}
    meta = {"labels": {**labels, "owner": whose}, "cgroups": {}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return name


async def _make_on_daemon(url: str, run: str) -> None:
    """Create a container and a volume of another host. No reaper removes them."""
    owner = Owner("elsewhere~00000000", 7, "b:1")
    labels = to_docker(Labels(run, "task.1", owner, time.time() + 600))
    async with Daemon(find_endpoint(url, None, os.environ)) as daemon:
        await daemon.create_volume(f"{run}-volume", labels)
        config = {"Image": "debian:12", "Cmd": ["true"], "Labels": labels}
        await daemon.create_container(config, f"{run}-container")


async def _on_daemon(url: str, run: str) -> set[str]:
    async with Daemon(find_endpoint(url, None, os.environ)) as daemon:
        of_run = f"plimsoll.run={run}"
        found = {row.names[0].lstrip("/") for row in await daemon.containers(of_run)}
        return found | {row.name for row in await daemon.volumes(of_run)}


def test_a_run_is_removed_on_every_backend_that_it_used(
    plimsoll: Plimsoll, own_home: Path, tmp_path: Path, docker_daemon: str
):
    run = f"test-{short_id()}"
    with (tmp_path / "plimsoll.toml").open("a") as file:
        file.write(f'[docker]\nhost = "{docker_daemon}"\n')
    asyncio.run(_make_on_daemon(docker_daemon, run))
    name = _write_leftover(own_home, run)
    ended = plimsoll("clean", run, "--force")
    assert ended.returncode == 0, ended.stderr
    assert f"removed       local sandbox {name}" in ended.stdout
    assert f"removed       docker sandbox {run}-container  (run {run}, task.1;" in ended.stdout
    assert f"removed       docker volume {run}-volume" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "removed 2 sandboxes, 1 volume"
    assert asyncio.run(_on_daemon(docker_daemon, run)) == set()
    assert _remaining(own_home) == set()
