"""Disk usage of starting and closing local sandboxes, and the storage of their files."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from mounts import ext4
from parts import need, spec
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.host import removal_queue
from plimsoll.sandboxes.local.host.cgroups import Cgroups, available_memory_mb
from plimsoll.sandboxes.local.host.ext4 import find_file_system, spread_over_block_groups
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.removal_queue import RemovalQueue
from plimsoll.sandboxes.local.host.upper_storage import UpperMode, UpperStorage
from plimsoll.sandboxes.local.images.base import host_base
from plimsoll.sandboxes.local.images.image import LocalImage
from plimsoll.sandboxes.local.sandbox import LocalSandbox
from plimsoll.sandboxes.protocol import ImageSource, Limits
from plimsoll.testing.waiting import until

Left = Callable[..., list[str]]
Mount = Callable[..., Path]

WRITES = "mkdir /w; for n in $(seq 20); do echo $n > /w/$n; done; touch /usr/new"

INTERRUPTED = """
import asyncio, signal, sys, threading
from pathlib import Path
from plimsoll.sandboxes.local.host import removal_queue
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import ImageSource
from parts import spec

really = removal_queue.remove_folder
interrupted = threading.Event()

def when_interrupted(folder):
    interrupted.wait(240)
    really(folder)

async def main():
    async with LocalBackend(LocalOptions(home=Path(sys.argv[1]), upper="disk")) as backend:
        image = await backend.build(ImageSource(reference="x"))
        removal_queue.remove_folder = when_interrupted
        for _ in range(6):
            await (await backend.create(image, spec())).close()
        print("closed", flush=True)
        try:
            await asyncio.sleep(600)
        finally:
            interrupted.set()

# A test that was started in the background of a shell ignores interrupts, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""
"""A process that is interrupted while folders of closed sandboxes are queued for removal."""

EMPTY_SOURCE = """
import sys
from pathlib import Path
from plimsoll.sandboxes.local.host.ext4 import find_file_system
from plimsoll.sandboxes.local.inside.syscalls import mount

mount("", sys.argv[1], "tmpfs", 0)
print(find_file_system(Path(sys.argv[1])).kind)
"""


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a new ext4 of 256 MB with the given features and options."""
    with contextlib.ExitStack() as mounted:

        def mount(name: str, *features: str, options: str = "loop") -> Path:
            return mounted.enter_context(ext4(tmp_path / name, 256, *features, options=options))

        yield mount


async def _entered(backend: LocalBackend) -> tuple[LocalImage, LocalSandbox]:
    image = await backend.build(ImageSource(reference="x"))
    assert isinstance(image, LocalImage)
    return image, await backend.create(image, spec())


def _inodes(folder: Path) -> set[str]:
    """The paths of a sandbox on disk, its folder included."""
    return {str(path.relative_to(folder)) for path in (folder, *folder.rglob("*"))}


async def test_a_sandbox_on_disk_has_few_inodes_and_shares_its_mount_points(tmp_path: Path):
    async with LocalBackend(LocalOptions(home=tmp_path, upper="disk")) as backend:
        image, made = await _entered(backend)
        overlays = len(image.lowers(Home(tmp_path)))
        assert not made.in_memory
        # The folder, meta.json and up; for each overlay up/NAME and work-NAME, in which the kernel
        # creates four more: work, and three for the option `volatile`.
        assert len(_inodes(tmp_path / "sandboxes" / made.id)) <= 3 + 6 * overlays
        assert list((tmp_path / "mounts").iterdir()) == []
        await made.close()


async def test_a_sandbox_in_memory_has_two_inodes_whatever_is_written(tmp_path: Path):
    shown, home = tmp_path / "shown", tmp_path / "home"
    (shown / "folder").mkdir(parents=True)
    (shown / "folder/file").touch()
    options = LocalOptions(home=home, upper="tmpfs", host_paths=(str(shown),))
    async with LocalBackend(options) as backend:
        _, made = await _entered(backend)
        assert made.in_memory
        done = await made.exec(f"{WRITES}; ls /w | wc -l; ls /usr | grep new")
        assert done.stdout.text.split() == ["20", "new"], done.stderr.text
        # A folder that was removed and created again is empty.
        done = await made.exec("ls folder; rm -r folder; mkdir folder; ls folder", cwd=str(shown))
        assert (done.exit_code, done.stdout.text) == (0, "file\n"), done.stderr.text
        assert _inodes(home / "sandboxes" / made.id) == {".", "meta.json"}
        await made.close()


async def test_an_empty_folder_of_the_host_has_no_overlay_and_can_be_written(tmp_path: Path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "x").touch()
    paths = (str(empty), str(full))
    targets = set(host_base(Home.open(tmp_path / "home"), paths, single_user=False).lowers)
    assert targets & set(paths) == {str(full)}
    options = LocalOptions(home=tmp_path / "home", host_paths=paths)
    async with LocalBackend(options) as backend:
        _, made = await _entered(backend)
        assert (await made.exec(f"touch {empty}/y {full}/y && ls {empty}")).stdout.text == "y\n"
        await made.close()
    assert list(empty.iterdir()) == []


def test_sandboxes_are_spread_over_the_groups_of_an_ext4(mount: Mount, tmp_path: Path):
    disk = mount("disk")
    home = Home.open(disk)
    assert _attributes(home.sandboxes) == {"T"}
    assert _attributes(home.layers) == set()
    assert _attributes(Home.open(disk).sandboxes) == {"T"}  # a second time
    assert spread_over_block_groups(disk / "none") is False


def _attributes(folder: Path) -> set[str]:
    shown = subprocess.run(["lsattr", "-d", folder], capture_output=True, text=True, check=True)
    return set(shown.stdout.split()[0]) & {"T"}


def test_a_file_system_without_the_flag_is_not_changed():
    shm = Path("/dev/shm")
    need("tmpfs", None if find_file_system(shm).kind == "tmpfs" else f"{shm} is not a tmpfs")
    assert spread_over_block_groups(shm) is False


def test_a_mount_with_an_empty_source_is_read(tmp_path: Path):
    need("root", None if os.geteuid() == 0 else "only root can mount")
    command = ["unshare", "--mount", sys.executable, "-c", EMPTY_SOURCE, tmp_path]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("tmpfs\n", "")


async def test_a_slow_home_is_warned_about_once_and_only_for_files_on_its_disk(
    mount: Mount,
):
    slow = mount("slow", "-O", "^has_journal", options="loop,discard")
    assert find_file_system(slow).slow == "ext4 without a journal, mounted with discard"
    async with LocalBackend(LocalOptions(home=slow)) as backend:
        image, made = await _entered(backend)
        assert made.in_memory
        assert not any("more slowly" in warning for warning in backend.warnings)
        await made.close()
        for _ in range(2):
            large = await backend.create(image, spec(limits=Limits(storage_mb=10_000)))
            assert not large.in_memory
            await large.close()
        (message,) = [warning for warning in backend.warnings if "more slowly" in warning]
    assert f"{slow} is on ext4 without a journal, mounted with discard" in message
    assert "PLIMSOLL_HOME" in message


async def test_on_a_fast_disk_files_are_on_disk_without_a_warning(mount: Mount):
    disk = mount("journalled")
    assert find_file_system(disk).slow == ""
    async with LocalBackend(LocalOptions(home=disk)) as backend:
        _, made = await _entered(backend)
        assert not made.in_memory
        await made.close()
        assert not any("more slowly" in warning for warning in backend.warnings)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that blocks all removals until it is set."""
    may, really = threading.Event(), removal_queue.remove_folder

    def hold(folder: Path) -> None:
        may.wait(60)
        really(folder)

    monkeypatch.setattr(removal_queue, "remove_folder", hold)
    yield may
    may.set()


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[tuple[LocalBackend, LocalImage]]:
    async with LocalBackend(LocalOptions(home=tmp_path, upper="disk")) as backend:
        image, made = await _entered(backend)
        await made.close()
        await until(lambda: not any((tmp_path / "sandboxes").iterdir()))
        yield backend, image


async def test_close_does_not_wait_for_the_removal(
    on_disk: tuple[LocalBackend, LocalImage],
    held: threading.Event,
    tmp_path: Path,
    left: Left,
    children: Callable[[], dict[int, str]],
):
    backend, image = on_disk
    running = set(children())
    made = await backend.create(image, spec(limits=Limits(pids=50)))
    await made.exec(f"{WRITES}; sleep 600 &")
    await asyncio.wait_for(made.close(), 60)
    await until(lambda: set(children()) == running)  # the monitor may still be exiting
    # Only a folder with its owner in the name is left, and no group.
    (folder,) = left(tmp_path, [made.id])
    assert Path(folder).name.startswith(f".{made.id}@")
    held.set()
    await until(lambda: left(tmp_path, [made.id]) == [])


async def test_a_long_removal_queue_causes_backpressure(
    on_disk: tuple[LocalBackend, LocalImage],
    held: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(removal_queue, "_MAX_QUEUED", 2)
    backend, image = on_disk
    for _ in range(2):
        await (await backend.create(image, spec())).close()
    closing = asyncio.create_task((await backend.create(image, spec())).close())
    await until(lambda: len(backend._removals._queued) == 3)
    assert not (await asyncio.wait([closing], timeout=0.2))[0]
    held.set()
    await asyncio.wait_for(closing, 60)


async def test_closing_the_backend_waits_for_all_removals(
    held: threading.Event, tmp_path: Path, left: Left
):
    held.set()
    async with LocalBackend(LocalOptions(home=tmp_path, upper="disk")) as backend:
        _, made = await _entered(backend)
        held.clear()
        await made.close()
        assert left(tmp_path)
        asyncio.get_running_loop().call_later(0.2, held.set)
    assert left(tmp_path) == []


def test_an_interrupted_process_removes_its_closed_sandboxes(tmp_path: Path, left: Left):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "closed\n"
        assert left(tmp_path)
        process.send_signal(signal.SIGINT)
    assert left(tmp_path) == []


async def test_a_removal_is_waited_for_if_the_disk_is_low(tmp_path: Path):
    warnings: list[str] = []
    full = RemovalQueue(warnings.append, lambda: True)
    (tmp_path / "x/y").mkdir(parents=True)
    await full.remove(tmp_path / "x")
    assert not (tmp_path / "x").exists()
    await full.close()
    assert warnings == []


async def test_a_failed_removal_is_a_warning_and_not_an_error_of_close(
    on_disk: tuple[LocalBackend, LocalImage], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def fail(folder: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(folder))

    backend, image = on_disk
    with monkeypatch.context() as patch:
        patch.setattr(removal_queue, "remove_folder", fail)
        for _ in range(2):
            await (await backend.create(image, spec())).close()
        await backend._removals.drain()
    (message,) = [warning for warning in backend.warnings if "are left" in warning]
    assert str(tmp_path / "sandboxes") in message
    assert "Operation not permitted" in message
    assert "plimsoll clean" in message


async def test_a_memory_limit_is_raised_by_the_limit_of_files_in_memory(tmp_path: Path):
    need("cgroups", Cgroups().missing)
    options = LocalOptions(home=tmp_path, upper="tmpfs", upper_mb=64)
    async with LocalBackend(options) as backend:
        image = await backend.build(ImageSource(reference="x"))
        made = await backend.create(image, spec(limits=Limits(memory_mb=128)))
        assert made.in_memory
        # Not rglob: it fails where another test's group is removed meanwhile.
        groups = (Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup"))
        own = [group for group in groups if group.name == f"plimsoll-{made.id}"]
        names = ("memory.limit_in_bytes", "memory.max")
        files = [group / name for group in own for name in names]
        limits = [int(file.read_text()) for file in files if file.is_file()]
        assert limits == [192 << 20]
        done = await made.exec("head -c 50M /dev/zero > /big && stat -c %s /big", timeout=60)
        assert done.stdout.text == "52428800\n"
        assert (await made.status()).oom_kills == 0
        await made.close()


async def test_files_in_memory_are_limited_and_the_next_sandboxes_use_the_disk(
    tmp_path: Path,
):
    options = LocalOptions(home=tmp_path, upper="tmpfs", upper_mb=32)
    async with LocalBackend(options) as backend:
        image, made = await _entered(backend)
        done = await made.exec("head -c 100M /dev/zero > /big; stat -c %s /big", timeout=60)
        assert "No space left" in done.stderr.text
        assert int(done.stdout.text) <= 32 << 20
        full = (await made.status()).full_disk
        assert full is not None
        assert "32 MB were not enough" in full.why
        assert "upper_mb" in full.why
        await made.close()
        assert (await made.status()).full_disk is not None
        again = await backend.create(image, spec())
        assert not again.in_memory
        assert (await again.exec("head -c 100M /dev/zero > /big", timeout=60)).ok
        await again.close()


async def test_many_small_files_in_memory_are_limited(tmp_path: Path):
    options = LocalOptions(home=tmp_path, upper="tmpfs", upper_mb=16)
    async with LocalBackend(options) as backend:
        _, made = await _entered(backend)
        loop = "for n in range(10**6): os.symlink('x', f'/tmp/{n}')"
        code = f"import os\ntry:\n  {loop}\nexcept OSError: print(n)"
        made_files = int((await made.exec(["python3", "-c", code], timeout=60)).stdout.text)
        assert 1000 < made_files <= 16 * 256
        full = (await made.status()).full_disk
        assert full is not None
        assert "no free inode" in full.why
        await made.close()


def _storage(
    home: Path,
    upper: UpperMode,
    *,
    slow: bool = True,
    available_mb: int = 10_000,
    warnings: list[str] | None = None,
) -> UpperStorage:
    where = Home.open(home)
    return UpperStorage(
        where,
        upper,
        100,
        slow_disk=slow,
        warn=(warnings if warnings is not None else []).append,
        available_mb=lambda: available_mb,
    )


@pytest.mark.parametrize(
    ("upper", "slow", "limits", "limited", "expected"),
    [
        ("auto", True, Limits(), False, 100),
        ("auto", False, Limits(), False, None),
        ("auto", True, Limits(memory_mb=512), True, None),
        ("auto", True, Limits(memory_mb=512), False, 100),
        ("auto", True, Limits(storage_mb=101), False, None),
        ("auto", True, Limits(storage_mb=100), False, 100),
        ("tmpfs", False, Limits(memory_mb=512), True, 100),
        ("tmpfs", False, Limits(storage_mb=101), False, None),
        ("disk", True, Limits(), False, None),
    ],
)
def test_upper_storage_depends_on_config_disk_and_limits(
    tmp_path: Path,
    upper: UpperMode,
    slow: bool,
    limits: Limits,
    limited: bool,
    expected: int | None,
):
    storage = _storage(tmp_path, upper, slow=slow)
    assert storage.choose("image", limits, memory_is_limited=limited) == expected


def test_all_files_in_memory_take_at_most_half_of_the_available_memory(tmp_path: Path):
    home = Home.open(tmp_path)
    warnings: list[str] = []
    storage = _storage(tmp_path, "tmpfs", available_mb=799, warnings=warnings)
    for number in range(3):  # sandboxes of other processes count too
        assert storage.choose("image", Limits(), memory_is_limited=False) == 100
        (home.sandboxes / f"{number}").mkdir()
    (home.sandboxes / ".9@host@1@x").mkdir()  # queued for removal
    assert warnings == []
    assert storage.choose("image", Limits(), memory_is_limited=False) is None
    (warning,) = warnings
    assert "short of memory" in warning
    assert "[local] upper_mb" in warning
    (home.sandboxes / "0").rmdir()
    assert storage.choose("image", Limits(), memory_is_limited=False) == 100


def test_the_available_memory_is_no_more_than_the_hosts():
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory_mb() <= pages >> 20
