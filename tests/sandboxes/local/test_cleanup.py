"""Local sandboxes leave nothing: after close, after a fault, after the death of the owner."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts import need, spec
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.sandboxes import reaper
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.host import processes, resources
from plimsoll.sandboxes.local.host.cgroups import Cgroups
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.zygote_client import ZygoteClient
from plimsoll.sandboxes.local.inventory import LocalInventory
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, Limits, Sandbox
from plimsoll.sandboxes.reaper import reap
from plimsoll.testing.waiting import until

Left = Callable[..., list[str]]
Children = Callable[[], dict[int, str]]
Idle = Callable[[], set[Path]]

PTRACE_SEIZE = 0x4206

DIG = "import os\nos.chdir('/tmp')\nfor _ in range(3000): os.mkdir('d' * 20); os.chdir('d' * 20)"

DIES = """
import asyncio, itertools, os, sys
from pathlib import Path
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import ImageSource
from parts import spec

changes, doomed = itertools.count(1), int(sys.argv[2])

def die(event, _):
    if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir") and next(changes) == doomed:
        os.kill(os.getpid(), 9)

async def main():
    options = LocalOptions(home=Path(sys.argv[1]), upper=sys.argv[3])
    async with LocalBackend(options) as backend:
        image = await backend.build(ImageSource(reference="x"))
        sys.addaudithook(die)
        await (await backend.create(image, spec())).close()
    print(next(changes) - 1)

asyncio.run(main())
"""
"""Starts and closes a sandbox, and is killed before the N-th change of the disk."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home for this test alone, so that it finds no sandboxes of others."""
    return tmp_path


async def _many(backend: Backend, image: Image, number: int) -> list[Sandbox]:
    return list(await asyncio.gather(*(backend.create(image, spec()) for _ in range(number))))


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_nothing_is_left_after_close(
    backend: Backend, image: Image, home: Path, left: Left, children: Children
):
    before = children()
    made = await backend.create(image, spec(limits=Limits(memory_mb=200, cpus=1, pids=50)))
    await made.exec("sleep 60 & setsid sleep 60 & mkdir -p /x/y; chmod 0 /x; touch /usr/new")
    assert left(home, [made.id])
    assert len(children()) > len(before)
    await made.close()
    await until(lambda: left(home, [made.id]) == [])
    assert set(children()) <= set(before)


async def test_cycles_leave_no_descriptor_no_process_and_no_folder(
    backend: Backend, image: Image, home: Path, left: Left, children: Children
):
    ids: list[str] = []

    async def cycle() -> None:
        made = await backend.create(image, spec())
        ids.append(made.id)
        await made.exec("cat; sleep 60 & true", stdin=b"x")
        await made.exec("sleep 60", timeout=0.01)
        await made.close()

    await cycle()
    await until(lambda: left(home, ids) == [])
    before, running = _descriptors(), set(children())
    for _ in range(50):
        await cycle()
    await until(lambda: left(home, ids) == [])
    await until(lambda: _descriptors() == before)  # the remover's, too
    assert set(children()) == running


async def test_a_hundred_sandboxes_at_once(
    backend: Backend, image: Image, home: Path, left: Left, children: Children
):
    before = _descriptors()
    many = await _many(backend, image, 100)
    assert len({s.id for s in many}) == 100
    done = await asyncio.gather(*(s.exec(f"echo {n}") for n, s in enumerate(many)))
    assert [d.stdout.text for d in done] == [f"{n}\n" for n in range(100)]
    await asyncio.gather(*(s.close() for s in many))
    await until(lambda: left(home, [s.id for s in many]) == [])
    assert len(children()) == 1  # the zygote
    await until(lambda: _descriptors() == before)  # the remover's, too


async def test_closing_the_backend_closes_its_sandboxes(
    tmp_path: Path, left: Left, children: Children
):
    before, running = _descriptors(), set(children())
    async with LocalBackend(LocalOptions(home=tmp_path)) as backend:
        image = await backend.build(ImageSource(reference="x"))
        many = await _many(backend, image, 5)
        await many[0].exec("sleep 60 &")
    assert left(tmp_path, [s.id for s in many]) == []
    assert set(children()) == running
    assert _descriptors() <= before + 1  # threads of the default executor may remain


async def test_a_cancellation_does_not_interrupt_closing_the_backend(
    tmp_path: Path, left: Left, children: Children, monkeypatch: pytest.MonkeyPatch
):
    running, made, leaving = set(children()), list[Sandbox](), asyncio.Event()

    async def reap_slowly(_: object) -> None:
        leaving.set()
        await asyncio.sleep(0.5)

    async def work() -> None:
        async with LocalBackend(LocalOptions(home=tmp_path)) as backend:
            image = await backend.build(ImageSource(reference="x"))
            made.append(await backend.create(image, spec()))
            monkeypatch.setattr(reaper, "reap", reap_slowly)

    task = asyncio.create_task(work())
    await leaving.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(tmp_path, [made[0].id]) == []
    assert set(children()) == running


class CancelledAt:
    """Awaits a coroutine, and cancels the task at the coroutine's n-th suspension.

    `is_late`: at the moment when the awaited result is there, which the coroutine then never gets.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, *, is_late: bool) -> None:
        self._awaited = coroutine.__await__()
        self._left = number
        self._is_late = is_late

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        resume, value = self._awaited.send, None
        while True:
            try:
                waiting = resume(value)
            except StopIteration as ended:
                return ended.value
            self._left -= 1
            if self._left == 0 and self._is_late and waiting is not None:
                waiting.add_done_callback(lambda _: task.cancel())
            elif self._left == 0:
                task.cancel()
            try:
                resume, value = self._awaited.send, (yield waiting)
            except BaseException as error:  # noqa: BLE001 - raised in the coroutine
                resume, value = self._awaited.throw, error


@pytest.mark.parametrize("is_late", [False, True], ids=["before the reply", "with the reply"])
async def test_a_create_cancelled_at_any_of_its_waits_leaves_nothing(
    backend: Backend, image: Image, home: Path, left: Left, children: Children, is_late: bool
):
    async def create(number: int) -> Sandbox:
        return await CancelledAt(backend.create(image, spec()), number, is_late=is_late)

    await (await backend.create(image, spec())).close()
    await until(lambda: left(home) == [])
    running, descriptors, number, made = set(children()), _descriptors(), 0, None
    while made is None:
        number += 1
        with contextlib.suppress(asyncio.CancelledError):
            made = await asyncio.create_task(create(number))
            await made.close()
        await until(lambda: left(home) == [] and set(children()) == running)
        await until(lambda: _descriptors() <= descriptors)
    assert number > 1, "it was never cancelled"


@pytest.mark.alone
@pytest.mark.parametrize("times", [1, 2])
async def test_creates_cancelled_midway_leave_nothing(
    backend: Backend,
    image: Image,
    home: Path,
    left: Left,
    children: Children,
    idle_groups: Idle,
    times: int,
):
    groups, running = idle_groups(), set(children())
    for step in range(5):
        tasks = [asyncio.create_task(backend.create(image, spec())) for _ in range(16)]
        await asyncio.sleep(step * 0.006)
        for _ in range(times):
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0.0003)
        for made in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(made, BaseException):
                await made.close()
    await until(lambda: left(home) == [] and set(children()) == running)
    # Groups of other processes come and go; leftovers would stay.
    new = idle_groups() - groups
    await until(lambda: not new & idle_groups())


async def test_a_deep_tree_is_removed_with_its_sandbox(
    backend: Backend, image: Image, home: Path, left: Left
):
    made = await backend.create(image, spec())
    assert (await made.exec(["python3", "-c", DIG])).ok
    await made.close()
    await until(lambda: left(home) == [])


async def test_an_init_killed_from_outside_is_noticed_in_time(
    backend: Backend, image: Image, home: Path, left: Left, children: Children
):
    before = set(children())
    made = await backend.create(image, spec())
    new = set(children()) - before
    (monitor,) = [pid for pid in new if _parent(pid) not in new]
    (init,) = [pid for pid in new if _parent(pid) == monitor]
    running = asyncio.create_task(made.exec("sleep 600"))
    await asyncio.sleep(0.1)
    os.kill(init, signal.SIGKILL)
    with pytest.raises(SandboxUnavailable):
        await asyncio.wait_for(running, 60)
    with pytest.raises(SandboxUnavailable):
        await made.exec("true")
    status = await made.status()
    assert not status.alive
    assert "died" in status.reason
    await made.close()
    await until(lambda: left(home, [made.id]) == [])
    assert monitor not in children()


async def test_after_the_zygotes_death_old_sandboxes_are_gone_and_new_ones_start(
    backend: Backend, image: Image, home: Path, left: Left, children: Children
):
    old = await _many(backend, image, 3)
    await old[0].exec("sleep 60 &")
    (zygote,) = [pid for pid in children() if _parent(pid) == os.getpid()]
    os.kill(zygote, signal.SIGKILL)
    for one in old:
        for _ in range(1500):
            if not (await one.status()).alive:
                break
            await asyncio.sleep(0.02)
        with pytest.raises(SandboxUnavailable):
            await one.exec("true")
    new = await _many(backend, image, 3)
    assert (await new[0].exec("echo on")).stdout.text == "on\n"
    await asyncio.gather(*(s.close() for s in (*old, *new)))
    await until(lambda: left(home, [s.id for s in (*old, *new)]) == [])


async def test_a_stopped_zygote_is_replaced_and_its_sandboxes_live_on(
    backend: LocalBackend, image: Image, home: Path, left: Left, children: Children
):
    (old,) = await _many(backend, image, 1)
    zygote = backend.zygote_pid
    assert zygote is not None
    os.kill(zygote, signal.SIGSTOP)
    # A zygote that is just being stopped may take one request, which is lost.
    await until(lambda: _state(zygote) == "T")
    async with asyncio.timeout(60):
        new = await _many(backend, image, 3)
    assert backend.zygote_pid not in (None, zygote)
    assert [(await one.exec("echo on")).stdout.text for one in (old, *new)] == ["on\n"] * 4
    os.kill(zygote, signal.SIGCONT)  # the pending request is served once, by another zygote
    (last,) = await _many(backend, image, 1)
    assert len(list((home / "sandboxes").iterdir())) == 5
    await asyncio.gather(*(one.close() for one in (old, *new, last)))
    await until(lambda: left(home, [one.id for one in (old, *new, last)]) == [])
    os.kill(zygote, signal.SIGSTOP)
    await backend.__aexit__(None, None, None)
    assert children() == {}
    await backend.__aenter__()


@pytest.mark.slow
async def test_a_zygote_that_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
):
    hangs = "import time; time.sleep(600)"
    async with LocalBackend(LocalOptions(home=tmp_path)) as backend:
        image = await backend.build(ImageSource(reference="debian:12"))
        for right_again in (True, False):
            zygote = ZygoteClient(timeout=1.0 if right_again else 0.3)
            monkeypatch.setattr(backend, "_zygote", zygote)
            monkeypatch.setattr("plimsoll.sandboxes.local.host.zygote_client._START", hangs)
            starting = asyncio.create_task(backend.create(image, spec()))
            await until(lambda zygote=zygote: zygote.pid is not None)
            if right_again:
                monkeypatch.undo()
                monkeypatch.setattr(backend, "_zygote", zygote)
                zygote._timeout = 60.0
                assert (await (await starting).exec("echo on")).stdout.text == "on\n"
            else:
                with pytest.raises(SandboxUnavailable, match="zygote does not answer"):
                    await starting
            await zygote.stop()
            monkeypatch.undo()
    assert children() == {}


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


OWNER = """
import asyncio, json, sys, time
from pathlib import Path
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, Limits, SandboxSpec

async def main():
    async with LocalBackend(LocalOptions(home=Path(sys.argv[1]))) as backend:
        image = await backend.build(ImageSource(reference="x"))
        labels = Labels("r", "t", this_process(), time.time() + 600)
        spec = SandboxSpec(labels, limits=Limits(memory_mb=100, cpus=1, pids=50))
        many = [await backend.create(image, spec) for _ in range(8)]
        for one in many:
            await one.exec("sleep 4321 & setsid sleep 4321 & touch /x")
        running = [asyncio.create_task(s.exec("echo x > /y; sleep 4321")) for s in many]
        await asyncio.sleep(0.2)
        print(json.dumps([s.id for s in many]), flush=True)
        await asyncio.gather(*running)

asyncio.run(main())
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Another process with eight running sandboxes in the home of the test."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
        process.kill()
    asyncio.run(reap(LocalInventory(Home.open(tmp_path))))


def _sleepers(ids: list[str]) -> list[int]:
    """Processes in the sandboxes' control groups or pid namespaces."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                groups = (entry / "cgroup").read_text()
            except OSError:
                continue
            if any(f"plimsoll-{name}" in groups for name in ids):
                found.append(int(entry.name))
    return found


async def test_leftovers_of_a_killed_owner_are_removed_by_the_next_start(
    tmp_path: Path, owner: tuple[subprocess.Popen[str], list[str]], left: Left
):
    process, ids = owner
    assert len(left(tmp_path, ids)) >= 8
    process.kill()
    process.wait()
    started = time.monotonic()
    async with LocalBackend(LocalOptions(home=tmp_path)):
        assert left(tmp_path, ids) == []
    assert time.monotonic() - started < 30
    await until(lambda: not _sleepers(ids))


async def test_a_live_owners_sandboxes_are_left_alone(
    tmp_path: Path, owner: tuple[subprocess.Popen[str], list[str]], left: Left
):
    process, ids = owner
    before, running = left(tmp_path, ids), _sleepers(ids)
    async with LocalBackend(LocalOptions(home=tmp_path)):
        assert left(tmp_path, ids) == before
    assert left(tmp_path, ids) == before
    assert process.poll() is None
    assert set(running) <= set(_sleepers(ids))


@pytest.mark.parametrize(
    ("upper", "least"), [pytest.param("disk", 20, marks=pytest.mark.slow), ("tmpfs", 4)]
)
async def test_leftovers_are_removed_whenever_the_process_was_killed(
    tmp_path: Path, upper: str, least: int
):
    def live(until: int) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", DIES, str(tmp_path), str(until), upper]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, check=False, env=env, stdout=subprocess.PIPE)

    async def left_by(change: int) -> list[str]:
        assert live(change).returncode == -signal.SIGKILL
        await reap(LocalInventory(Home.open(tmp_path)))
        return [path.name for path in (tmp_path / "sandboxes").iterdir()]

    changes = int(live(-1).stdout)
    assert changes > least
    some = {1, 2, *range(3, changes, 8), changes - 2, changes - 1, changes}
    assert {change: left for change in sorted(some) if (left := await left_by(change))} == {}


async def test_a_deep_tree_of_a_dead_owner_does_not_stop_the_next_one(tmp_path: Path, left: Left):
    async with LocalBackend(LocalOptions(home=tmp_path)):
        pass
    folder = tmp_path / "sandboxes/0123456789/up"
    folder.mkdir(parents=True)
    labels = {"run": "r", "ticket": "t", "expires": 0.0}
    dead = {"host": os.uname().nodename, "pid": 2**22 - 1, "started": "never"}
    meta = {"labels": {**labels, "owner": dead}, "cgroups": {}}
    (folder.parent / "meta.json").write_text(json.dumps(meta))
    dig = DIG.replace("/tmp", str(folder))
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", dig], check=True)
    async with LocalBackend(LocalOptions(home=tmp_path)):
        assert left(tmp_path) == []


def _processes(sandbox: Sandbox, name: str) -> list[int]:
    """The host pids of a sandbox's processes with this name."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                inside = f"sandboxes/{sandbox.id}/up" in (entry / "mountinfo").read_text()
                if inside and (entry / "comm").read_text().strip() == name:
                    found.append(int(entry.name))
    return found


async def _started(sandbox: Sandbox, name: str) -> int:
    """The one process with this name. A shell forks before it executes the program."""
    await until(lambda: _processes(sandbox, name))
    (pid,) = _processes(sandbox, name)
    return pid


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group of the host that can freeze processes."""
    name = f"test-freezer-{os.getpid()}"
    for hierarchy in ("freezer", ""):
        group = Path("/sys/fs/cgroup", hierarchy, name)
        if (group.parent / "cgroup.procs").exists():
            break
    try:
        group.mkdir()
    except OSError as error:
        need("cgroups", f"{group}: {error.strerror}")
    yield group
    deadline = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    group.rmdir()


def _freeze(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))
    if (group / "freezer.state").exists():
        (group / "freezer.state").write_text("FROZEN")
    else:
        (group / "cgroup.freeze").write_text("1")


async def test_a_frozen_process_ends_with_its_sandbox(
    backend: Backend, image: Image, home: Path, left: Left, freezer: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(resources, "_EXIT_SECONDS", 2.0)
    made = await backend.create(image, spec())
    await made.exec("sleep 600 & true")
    pid = await _started(made, "sleep")
    _freeze(freezer, pid)
    await made.close()
    assert _processes(made, "sleep") == []
    await until(lambda: left(home, [made.id]) == [])


async def test_subgroups_of_a_sandbox_are_removed(
    backend: Backend, image: Image, home: Path, left: Left
):
    need("cgroups", Cgroups().missing)
    made = await backend.create(image, spec(limits=Limits(pids=50)))
    await made.exec("sleep 600 & true")
    pid = await _started(made, "sleep")
    groups = [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if "pids" in folder]
    (group,) = [group for group in groups if group.name == f"plimsoll-{made.id}"]
    (group / "below/deeper").mkdir(parents=True)
    (group / "below/deeper/cgroup.procs").write_text(str(pid))
    await made.close()
    await until(lambda: left(home, [made.id]) == [])


def _detach(traced: int) -> None:
    os.waitpid(traced, 0x40000000)  # __WALL


async def test_files_of_a_sandbox_stay_while_a_process_does_not_die(
    backend: Backend, image: Image, home: Path, left: Left, monkeypatch: pytest.MonkeyPatch
):
    """A traced process stays until its tracer has collected it."""
    monkeypatch.setattr(resources, "_EXIT_SECONDS", 0.5)
    monkeypatch.setattr(processes, "_KILL_SECONDS", 0.5)
    made = await backend.create(image, spec())
    await made.exec("sleep 600 & true")
    pid = await _started(made, "sleep")
    assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, pid, 0, 0) == 0
    try:
        with pytest.raises(SandboxError, match=r"do not die: \d+ \(.+\); its files are kept"):
            await made.close()
        folder = home / "sandboxes" / made.id
        assert (folder / "meta.json").is_file()
    finally:
        _detach(pid)
    item = next(x for x in await LocalInventory(Home(home)).items() if x.id == made.id)
    await until(lambda: not processes.find_monitors([os.getpid()]).get(made.id))
    await LocalInventory(Home(home)).remove(item)
    assert left(home, [made.id]) == []
