"""Resource limits of local sandboxes through control groups, if this host allows them."""

import asyncio
import os
from pathlib import Path

import pytest

from parts import need, spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.host import cgroups
from plimsoll.sandboxes.local.host.cgroups import Cgroup, Cgroups
from plimsoll.sandboxes.protocol import Backend, Image, Limits


def _groups(name: str) -> dict[str, Path]:
    """The control groups of a sandbox by controller. With version 2 all are one."""
    root = Path("/sys/fs/cgroup")
    found = {x.parent.name: x for x in root.glob(f"*/plimsoll-{name}")}
    for folder, names, _ in os.walk(root):  # other groups may disappear meanwhile
        if f"plimsoll-{name}" in names:
            one = Path(folder, f"plimsoll-{name}")
            found.setdefault(one.relative_to(root).parts[0], one)
    return found


@pytest.fixture
def limited() -> None:
    need("cgroups", Cgroups().missing)


def _hold(megabytes: int, seconds: float) -> list[str]:
    code = f"x = b'x' * ({megabytes} << 20); import time; print('held', flush=True)"
    return ["python3", "-c", f"{code}; time.sleep({seconds})"]


async def test_memory_over_the_limit_kills_one_process_and_is_counted(
    backend: Backend, image: Image, limited: None
):
    made = await backend.create(image, spec(limits=Limits(memory_mb=128)))
    try:
        assert (await made.status()).oom_kills == 0
        other = asyncio.create_task(made.exec(_hold(8, 1.5)))
        await asyncio.sleep(0.3)
        done = await made.exec(_hold(400, 0), timeout=20)
        assert (done.signal, done.timed_out) == (9, False)
        assert (await made.status()).oom_kills == 1
        assert (await other).ok
        assert (await made.exec(_hold(64, 0))).ok
    finally:
        await made.close()


async def test_without_a_limit_memory_is_not_limited(backend: Backend, image: Image):
    made = await backend.create(image, spec())
    try:
        assert (await made.exec(_hold(400, 0))).ok
    finally:
        await made.close()


async def test_the_init_outlives_a_process_that_takes_all_memory(
    backend: Backend, image: Image, limited: None
):
    made = await backend.create(image, spec(limits=Limits(memory_mb=64)))
    try:
        for _ in range(3):
            await made.exec("echo 0 > /proc/self/oom_score_adj; tail /dev/zero", timeout=20)
        assert (await made.exec("echo on")).stdout.text == "on\n"
    finally:
        await made.close()


async def test_cpus_become_a_quota(backend: Backend, image: Image, limited: None):
    made = await backend.create(image, spec(limits=Limits(cpus=0.5)))
    try:
        files = {f.name: f for group in _groups(made.id).values() for f in group.iterdir()}
        if "cpu.max" in files:
            assert files["cpu.max"].read_text().split() == ["50000", "100000"]
        else:
            assert files["cpu.cfs_quota_us"].read_text().strip() == "50000"
        spin = "import time; e = time.time() + 1\nwhile time.time() < e: pass\n"
        done = await made.exec(["python3", "-c", f"{spin}print(time.process_time())"])
        assert float(done.stdout.text) < 0.8
    finally:
        await made.close()


async def test_processes_are_limited(backend: Backend, image: Image, limited: None):
    made = await backend.create(image, spec(limits=Limits(pids=15)))
    try:
        code = "import os, time\nn = 0\ntry:\n  while True:\n    if not os.fork(): time.sleep(9)\n"
        done = await made.exec(["python3", "-c", f"{code}    n += 1\nexcept OSError: print(n)"])
        assert 5 < int(done.stdout.text) < 15
        await made.kill_all()
        assert (await made.exec("true")).ok
    finally:
        await made.close()


async def test_processes_are_limited_by_default(backend: Backend, image: Image, limited: None):
    made = await backend.create(image, spec())
    try:
        files = [group / "pids.max" for group in _groups(made.id).values()]
        assert [int(f.read_text()) for f in files if f.exists()] == [4096]
    finally:
        await made.close()


async def test_limits_that_are_not_enforced_are_warned_about(backend: Backend, image: Image):
    made = await backend.create(image, spec(limits=Limits(storage_mb=100)))
    await made.close()
    assert any("storage_mb" in line for line in backend.warnings)
    assert len(set(backend.warnings)) == len(backend.warnings)


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake unified hierarchy in which this process is in /a/b."""
    (tmp_path / "a/b").mkdir(parents=True)
    for folder, controllers in (("", "cpu memory pids"), ("a", "memory pids"), ("a/b", "")):
        (tmp_path / folder / "cgroup.subtree_control").write_text(controllers)
    monkeypatch.setattr(cgroups, "_mounts", lambda: {"": tmp_path})
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": "/a/b"})
    return tmp_path


def test_with_version_2_one_group_has_all_limits(unified: Path):
    (unified / "a/b/cgroup.subtree_control").write_text("cpu io memory pids")
    found = Cgroups()
    assert found.missing is None
    group = found.plan("x", Limits(cpus=1.5, memory_mb=10, pids=7))
    group.create()
    folder = unified / "a/b/plimsoll-x"
    assert set(group.folders.values()) == {folder}
    assert group.procs_files == [str(folder / "cgroup.procs")]
    assert (folder / "memory.max").read_text() == str(10 << 20)
    assert (folder / "cpu.max").read_text() == "150000 100000"
    assert (folder / "pids.max").read_text() == "7"


def test_with_version_2_a_group_without_controllers_is_skipped(unified: Path):
    found = Cgroups()
    assert found.missing is not None
    assert "CPU" in found.missing
    assert "memory" not in found.missing.split(":")[1]
    group = found.plan("x", Limits(cpus=1, memory_mb=10, pids=7))
    group.create()
    assert set(group.folders.values()) == {unified / "a/plimsoll-x"}
    assert not (unified / "a/plimsoll-x/cpu.max").exists()


def test_version_2_counts_kills_for_memory(tmp_path: Path):
    (tmp_path / "memory.events").write_text("low 0\nmax 12\noom 3\noom_kill 2\n")
    assert Cgroup({"memory": tmp_path}, {}).oom_kills() == 2
    assert Cgroup({}, {}).oom_kills() is None


def test_without_write_access_nothing_is_limited_and_a_warning_says_so(
    unified: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cgroups, "_mounts", dict)
    found = Cgroups()
    assert found.missing is not None
    for word in ("memory", "CPU", "process"):
        assert word in found.missing
    assert found.plan("x", Limits(cpus=1, memory_mb=10, pids=7)).folders == {}


def test_a_limit_that_cannot_be_written_is_an_error(unified: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cgroups, "_REMOVE_SECONDS", 0.1)
    found = Cgroups()
    (unified / "a/plimsoll-x/memory.max").mkdir(parents=True)
    with pytest.raises(SandboxUnavailable, match=r"memory\.max"):
        found.plan("x", Limits(memory_mb=10)).create()
