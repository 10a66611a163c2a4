"""Isolation of local sandboxes: the visible parts of the host, and attempts to change it."""

import os
import stat
from pathlib import Path

import pytest

from parts import spec
from plimsoll.sandboxes.local.backend import LocalBackend
from plimsoll.sandboxes.protocol import Backend, Image, Mount, Sandbox

TOP = (
    "bin boot dev etc home lib lib32 lib64 libx32 media mnt opt proc root run sbin srv sys tmp "
    "usr var"
)
PTRACE = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"  # PTRACE_ATTACH


@pytest.fixture(autouse=True)
def only_local(backend: Backend) -> None:
    assert isinstance(backend, LocalBackend)


async def _output(sandbox: Sandbox, command: str, user: str | None = None) -> str:
    done = await sandbox.exec(f"{{ {command}; }} 2>&1", user=user)
    return done.stdout.text


async def test_only_programs_and_libraries_of_the_host_are_visible(sandbox: Sandbox):
    expected = set(TOP.split())
    assert set((await _output(sandbox, "ls -A /")).split()) <= expected
    for folder in ("/root", "/home", "/mnt", "/media", "/srv", "/tmp", "/var/tmp", "/sys"):
        assert await _output(sandbox, f"ls -A {folder}") == "", folder
    assert (await _output(sandbox, "ls -A /run")).split() == ["lock"]


async def test_private_paths_of_the_host_are_not_visible(sandbox: Sandbox, tmp_path: Path):
    (tmp_path / "secret").write_text("hush")
    for path in (tmp_path / "secret", Path(__file__), Path("/etc/machine-id"), Path("/etc/ssh")):
        assert "No such file" in await _output(sandbox, f"ls -d {path}")
    assert "root:*:" in await _output(sandbox, "cat /etc/shadow")
    people = [
        line.split(":")[0]
        for line in Path("/etc/passwd").read_text().splitlines()
        if 1000 <= int(line.split(":")[2]) < 60000
    ]
    inside = await _output(sandbox, "cut -d: -f1 /etc/passwd")
    assert not set(people) & set(inside.split())


async def test_no_process_of_the_host_is_visible(sandbox: Sandbox):
    seen = await _output(sandbox, "for p in /proc/[0-9]*; do echo ${p#/proc/}; done | sort -n")
    assert len(seen.split()) <= 5
    assert seen.split()[0] == "1"


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_init_reveals_nothing_of_the_host(sandbox: Sandbox, user: str):
    for path in ("environ", "root/etc", "fd/0", "cwd", "exe", "mem", "maps", "ns/net", "ns/mnt"):
        command = f"head -c 9 /proc/1/{path}; ls -d /proc/1/{path}/"
        output = await _output(sandbox, command, user=user)
        assert "Permission denied" in output, path


async def test_the_command_line_of_init_contains_no_path_of_the_host(sandbox: Sandbox, home: Path):
    shown = await _output(sandbox, "cat /proc/1/cmdline /proc/1/comm")
    assert str(Path(__file__).parents[3]) not in shown
    assert str(home) not in shown


async def test_the_mounts_contain_no_path_of_the_home(sandbox: Sandbox, home: Path):
    assert str(home) not in await _output(sandbox, "cat /proc/self/mountinfo")


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_the_init_cannot_be_traced(sandbox: Sandbox, user: str):
    assert await _output(sandbox, f"python3 -c '{PTRACE}'", user=user) == "-1\n"


async def test_a_commands_runner_cannot_be_traced_or_read(sandbox: Sandbox):
    # The runner is the parent of the shell, and has all capabilities of init.
    trace = "import ctypes, sys; print(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0))"
    assert await _output(sandbox, f"python3 -c '{trace}' $PPID") == "-1\n"
    assert "denied" in await _output(sandbox, "head -c 9 /proc/$PPID/environ")


FORBIDDEN = (
    "echo 1 > /proc/sys/vm/drop_caches",
    "echo x > /proc/sys/kernel/hostname",
    "echo x > /proc/sys/kernel/core_pattern",
    "echo b > /proc/sysrq-trigger",
    "mknod /tmp/disk b 254 0",
    "mknod /dev/mem c 1 1",
    "mount -t tmpfs none /mnt",
    "mount --bind / /mnt",
    "mount -o remount,rw /proc/sys",
    "umount /proc/sys",
    "umount -l /usr",
    "hostname other",
    "date -s 2001-01-01",
    "chroot /proc/1/root true",
    "nsenter -t 1 -a true",
    "unshare -m true",
    "dmesg",
    "swapoff -a && swapon /dev/null",
    "insmod /dev/null",
    "python3 -c 'import os; os.setpriority(0, 0, -5)'",
    "python3 -c 'import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (1 << 30, 1 << 30))'",
)


async def test_root_in_a_sandbox_is_not_root_of_the_host(sandbox: Sandbox):
    for attempt in FORBIDDEN:
        assert not (await sandbox.exec(attempt)).ok, attempt


async def test_a_nested_namespace_does_not_open_proc_sys(sandbox: Sandbox):
    for attempt in (
        "umount /proc/sys && echo out",
        "mount -o remount,rw,bind /proc/sys && echo out",
        "echo core > /proc/sys/kernel/core_pattern && echo out",
        "mount -t proc proc /mnt && echo core > /mnt/sys/kernel/core_pattern && echo out",
    ):
        done = await sandbox.exec(["unshare", "-Urm", "sh", "-c", attempt])
        assert "out" not in done.stdout.text


async def test_capabilities_and_privileges_are_bounded(sandbox: Sandbox):
    lines = (await _output(sandbox, "cat /proc/self/status")).splitlines()
    status = dict(line.split(":", 1) for line in lines)
    assert status["NoNewPrivs"].strip() == "1"
    for kind in ("CapEff", "CapPrm", "CapBnd"):
        held = int(status[kind], 16)
        # dac_read_search, net_admin, sys_module, sys_rawio, sys_ptrace, sys_admin, sys_boot,
        # sys_time, mknod, mac_admin, syslog, bpf
        for number in (2, 12, 16, 17, 19, 21, 22, 25, 27, 33, 34, 39):
            assert not held >> number & 1, f"{kind} has {number}"
    other = await _output(sandbox, "grep CapEff /proc/self/status", user="nobody")
    assert int(other.split()[1], 16) == 0


async def test_a_setuid_program_gains_no_privileges(sandbox: Sandbox):
    await sandbox.exec("cp /usr/bin/id /usr/local/bin/sid; chmod 4755 /usr/local/bin/sid")
    assert await _output(sandbox, "sid -u", user="nobody") == "65534\n"


async def test_the_host_name_is_the_sandboxs_own(sandbox: Sandbox):
    assert await _output(sandbox, "hostname") == f"plimsoll-{sandbox.id}\n"


async def test_changing_a_device_inside_does_not_change_the_hosts(sandbox: Sandbox):
    before = Path("/dev/null").stat().st_mode
    await sandbox.exec("chmod 000 /dev/null; rm -f /dev/zero; chown 1234 /dev/full")
    assert Path("/dev/null").stat().st_mode == before
    assert stat.S_ISCHR(Path("/dev/zero").stat().st_mode)
    assert Path("/dev/full").stat().st_uid == 0


async def test_changing_programs_inside_does_not_change_the_hosts(sandbox: Sandbox):
    shell, listed = Path("/usr/bin/env").read_bytes(), sorted(Path("/usr/local/bin").iterdir())
    await sandbox.exec("echo x > /usr/bin/env; touch /usr/local/bin/new /opt/new; rm /usr/bin/perl")
    assert Path("/usr/bin/env").read_bytes() == shell
    assert sorted(Path("/usr/local/bin").iterdir()) == listed
    assert Path("/usr/bin/perl").exists()
    assert not Path("/opt/new").exists()


async def test_usual_devices_work(sandbox: Sandbox):
    done = await sandbox.exec(
        "echo x > /dev/null && head -c 4 /dev/zero | wc -c && head -c 9 /dev/urandom | wc -c && "
        "echo hi > /dev/stdout && echo shm > /dev/shm/x && python3 -c 'import pty; pty.openpty()'",
        user="nobody",
    )
    assert done.stdout.text == "4\n9\nhi\n", done.stderr.text


async def test_a_mount_is_visible_and_read_only(backend: Backend, image: Image, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("shared")
    (tmp_path / "one").write_text("single")
    mounts = (Mount(tmp_path / "folder", "/data/folder"), Mount(tmp_path / "one", "/etc/one"))
    made = await backend.create(image, spec(mounts=mounts))
    try:
        assert await _output(made, "cat /data/folder/file /etc/one") == "sharedsingle"
        for attempt in (
            "echo x > /data/folder/file",
            "touch /data/folder/new",
            "rm /data/folder/file",
            "echo x > /etc/one",
            "chmod 777 /data/folder",
            "mount -o remount,rw /data/folder",
            "umount /data/folder",
        ):
            assert not (await made.exec(attempt)).ok, attempt
    finally:
        await made.close()
    assert (tmp_path / "folder/file").read_text() == "shared"


async def test_a_mount_never_touches_the_host_through_a_link_of_the_image(
    backend: Backend, image: Image, tmp_path: Path
):
    # /var/run is a link to /run in the image, and there is a /run on the host too.
    (tmp_path / "file").write_text("shared")
    on_host = Path(f"/run/plimsoll-test-{os.getpid()}")
    try:
        made = await backend.create(
            image, spec(mounts=(Mount(tmp_path, f"/var/run/{on_host.name}"),))
        )
        try:
            assert not on_host.exists()
            assert await _output(made, f"cat /run/{on_host.name}/file") == "shared"
        finally:
            await made.close()
    finally:
        if on_host.exists():
            on_host.rmdir()


async def test_no_socket_of_the_host_is_reached_through_a_path(sandbox: Sandbox):
    assert await _output(sandbox, "find / -xdev -type s 2>/dev/null") == ""
