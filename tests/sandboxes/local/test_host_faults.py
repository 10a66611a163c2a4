"""Faults of the host: each is one clear error, in time, and leaves nothing."""

import asyncio
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mounts import mounted, resize, tmpfs
from parts import spec
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.channel import Channel
from plimsoll.sandboxes.local.host import resources
from plimsoll.sandboxes.local.host.cgroups import Cgroup
from plimsoll.sandboxes.local.host.removal_queue import RemovalQueue
from plimsoll.sandboxes.local.host.resources import HostResources
from plimsoll.sandboxes.local.sandbox import LocalSandbox
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource
from plimsoll.testing.waiting import until

Left = Callable[..., list[str]]


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    """A backend whose home has two megabytes left after its base."""
    with tmpfs(tmp_path / "small", "64m") as home:
        async with LocalBackend(LocalOptions(home=home)) as backend:
            used = os.statvfs(home)
            resize(home, f"{(used.f_blocks - used.f_bfree) * used.f_frsize + (2 << 20)}")
            yield backend


async def test_a_full_disk_fails_the_command_and_is_a_clear_error(
    small: LocalBackend, tmp_path: Path, left: Left
):
    image = await small.build(ImageSource(reference="x"))
    made = await small.create(image, spec())
    done = await made.exec("head -c 50M /dev/zero > /tmp/big", timeout=20)
    assert not done.ok
    assert "No space left" in done.stderr.text
    (tmp_path / "big").write_bytes(b"x" * (8 << 20))
    with pytest.raises(SandboxError, match="No space left"):
        await made.upload(tmp_path / "big", "/etc/big")
    with pytest.raises(SandboxUnavailable, match="No space left"):
        for _ in range(1000):
            await small.create(image, spec())
    assert (await made.exec("rm /tmp/big /etc/big; echo on")).stdout.text == "on\n"
    await made.close()
    again = await small.create(image, spec())
    await again.close()


async def test_no_room_for_the_base_is_one_clear_error_and_leaves_nothing(tmp_path: Path):
    with tmpfs(tmp_path / "tiny", "300k") as home:
        with pytest.raises(SandboxUnavailable, match=r"No space left.*PLIMSOLL_HOME"):
            async with LocalBackend(LocalOptions(home=home)):
                pass
        assert list((home / "bases").iterdir()) == []


async def test_no_room_at_all_leaves_nothing(small: LocalBackend, tmp_path: Path, left: Left):
    image = await small.build(ImageSource(reference="x"))
    with (tmp_path / "small/fill").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(SandboxUnavailable, match="No space left"):
        await small.create(image, spec())
    assert left(tmp_path / "small") == []


async def test_a_home_without_overlay_support_is_one_clear_error(tmp_path: Path):
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    with mounted(tmp_path / "home", "-t", "overlay", "-o", options, "overlay") as home:
        with pytest.raises(SandboxUnavailable, match="PLIMSOLL_HOME") as caught:
            async with LocalBackend(LocalOptions(home=home)):
                pass
        assert str(home) in str(caught.value)
        assert list((home / "sandboxes").iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "comma,colon:", "ünï", "quote'\"", "back\\slash"])
async def test_a_home_can_have_any_name(tmp_path: Path, name: str):
    async with LocalBackend(LocalOptions(home=tmp_path / name)) as backend:
        made = await backend.create(await backend.build(ImageSource(reference="x")), spec())
        assert (await made.exec("echo on")).stdout.text == "on\n"


async def test_a_home_that_cannot_be_written_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailable, match="PLIMSOLL_HOME"):
        async with LocalBackend(LocalOptions(home=tmp_path / "file/home")):
            pass


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home for this test alone, so that it finds no sandboxes of others."""
    return tmp_path / "home"


@pytest.mark.alone
async def test_without_free_descriptors_there_is_a_clear_error_and_nothing_is_left(
    backend: Backend, image: Image, home: Path, left: Left, idle_groups: Callable[[], set[Path]]
):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    groups = idle_groups()
    failed = 0
    try:
        for spare in range(12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            used = len(list(Path("/proc/self/fd").iterdir())) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
            try:
                made = await backend.create(image, spec())
            except SandboxUnavailable:
                failed += 1
            else:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await made.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failed
    await until(lambda: left(home) == [])
    # Groups of other processes come and go; leftovers would stay.
    new = idle_groups() - groups
    await until(lambda: not new & idle_groups())


async def test_a_command_without_free_descriptors_is_a_clear_error_and_leaves_none_open(
    backend: Backend, image: Image, monkeypatch: pytest.MonkeyPatch
):
    made = await backend.create(image, spec())
    before = _descriptors()
    pipe2, pipes = os.pipe2, iter([True, False])

    def exhausted(flags: int) -> tuple[int, int]:
        if not next(pipes):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pipe2(flags)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe2", exhausted)
        with pytest.raises(SandboxUnavailable, match="could not be started: Too many open files"):
            await made.exec(["cat"], stdin=b"input")
    await until(lambda: _descriptors() == before)
    assert (await made.exec(["cat"], stdin=b"input")).stdout.text == "input"


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_the_number_of_processes_is_unknown_if_init_cannot_count_them(
    backend: Backend, image: Image, monkeypatch: pytest.MonkeyPatch
):
    made = await backend.create(image, spec())
    assert isinstance(made, LocalSandbox)

    async def ask(*_: object) -> dict[str, object]:
        return {"error": "OSError: [Errno 23] Too many open files in system: '/proc'"}

    monkeypatch.setattr(made, "_ask", ask)
    status = await made.status()
    assert status.alive
    assert status.processes is None


async def test_a_folder_that_cannot_be_removed_without_descriptors_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tries = iter([errno.EMFILE, errno.EMFILE, 0])

    def kill(*_: object) -> None:
        if code := next(tries):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(resources, "kill_survivors", kill)
    warnings: list[str] = []
    removals = RemovalQueue(warnings.append, lambda: False)
    folder = tmp_path / "abc"
    (folder / "upper").mkdir(parents=True)
    ours, theirs = socket.socketpair()
    theirs.close()  # the sandbox ended without a word
    held = HostResources(folder, this_process(), Cgroup({}), ours, removals)
    with pytest.raises(OSError, match="Too many open files"):
        await held.release()
    await removals.close()
    assert list(tmp_path.iterdir()) == []
    assert (warnings, list(tries)) == ([], [])


async def test_a_strict_umask_does_not_close_the_sandbox_to_other_users(home: Path, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o644)
    before = os.umask(0o077)
    try:
        async with LocalBackend(LocalOptions(home=home)) as backend:
            made = await backend.create(await backend.build(ImageSource(reference="x")), spec())
            await made.upload(tmp_path / "file", "/new/folder/file")
            done = await made.exec(
                "cat /new/folder/file /etc/hosts /etc/passwd; ls /etc/ssl/certs", user="nobody"
            )
    finally:
        os.umask(before)
    assert done.ok, done.stderr.text


@pytest.mark.parametrize(
    "garbage", [b"{", b"\xff\xfe", b"[]", b"1", b"null", b"x" * 60000, b"[" * 60000]
)
async def test_garbage_on_the_channel_ends_every_wait(garbage: bytes):
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        channel = Channel(ours)
        try:
            _, reply = await channel.send("exec")
            theirs.send(garbage)
            with pytest.raises(SandboxUnavailable):
                await asyncio.wait_for(reply, 60)
            assert channel.gone
        finally:
            channel.close("over")
    assert problems == []


@pytest.mark.parametrize("stray", [b'{"id": "x"}', b'{"id": 77}', b'{"id": null}'])
async def test_a_reply_without_a_request_is_ignored(stray: bytes):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        channel = Channel(ours)
        _, reply = await channel.send("exec")
        theirs.send(stray)
        theirs.send(b'{"id": 1, "exit": 0}')
        assert (await asyncio.wait_for(reply, 60))["exit"] == 0
        channel.close("over")
