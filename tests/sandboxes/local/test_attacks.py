"""Attacks from inside a local sandbox: on its host, on its init, on the commands after it."""

import asyncio
import os
import platform
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mounts import tmpfs
from parts import need, spec
from plimsoll.core.errors import SandboxUnsupported
from plimsoll.core.permissions import SYSTEM_CALLS
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.images import private_files
from plimsoll.sandboxes.local.inside import seccomp
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, Mount, Sandbox

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97


@pytest.fixture
async def permissive_backend(home: Path) -> AsyncIterator[LocalBackend]:
    """A backend that allows all groups of system calls."""
    options = LocalOptions(home=home, allow_system_calls=frozenset(SYSTEM_CALLS))
    async with LocalBackend(options) as backend:
        yield backend


async def _start(backend: LocalBackend, *calls: str) -> Sandbox:
    image = await backend.build(ImageSource(reference="debian:12"))
    return await backend.create(image, spec(system_calls=calls))


async def _output(sandbox: Sandbox, command: str, user: str | None = None) -> str:
    done = await sandbox.exec(f"{{ {command}; }} 2>&1", user=user, timeout=60)
    return done.stdout.text


def _calls(*calls: tuple[int, ...]) -> str:
    """A command that prints the error of each system call, given by number and arguments."""
    return (
        "python3 -c 'import ctypes; c = ctypes.CDLL(None, use_errno=True); e = []\n"
        f"for call in {calls!r}:\n"
        "    ctypes.set_errno(0); c.syscall(*map(ctypes.c_long, call))\n"
        "    e.append(ctypes.get_errno())\n"
        "print(*e)'"
    )


MOUNTS = (
    "mount -t cgroup2 none /mnt",
    "mount -t cgroup -o memory none /mnt",
    "mount -t cgroup -o pids none /mnt",
    "mount -t cgroup -o freezer none /mnt",
)


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_no_user_or_cgroup_namespace_can_be_created(sandbox: Sandbox, user: str):
    for namespaces in ("-UrmC", "-Urm", "-UC", "-C", "-U"):
        done = await sandbox.exec(["unshare", namespaces, "true"], user=user)
        assert not done.ok, namespaces
        assert "not permitted" in done.stderr.text


async def test_control_groups_cannot_be_mounted_in_a_user_namespace(
    permissive_backend: LocalBackend,
):
    made = await _start(permissive_backend, "user-namespaces")
    try:
        mount = "unshare -Urm sh -c 'mount -t tmpfs none /mnt && echo in'"
        assert await _output(made, mount) == "in\n"
        for command in MOUNTS:
            done = await made.exec(["unshare", "-Urm", "sh", "-c", command])
            assert not done.ok, command
            assert not (await made.exec(["unshare", "-UrmC", "sh", "-c", command])).ok, command
    finally:
        await made.close()


async def test_a_nested_namespace_does_not_open_proc_sys(permissive_backend: LocalBackend):
    made = await _start(permissive_backend, "user-namespaces")
    try:
        for attempt in (
            "umount /proc/sys && echo out",
            "umount /proc/1 && echo out",
            "mount -o remount,rw,bind /proc/1 && echo out",
            "mount -t proc proc /mnt && echo core > /mnt/sys/kernel/core_pattern && echo out",
        ):
            done = await made.exec(["unshare", "-Urm", "sh", "-c", attempt])
            assert "out" not in done.stdout.text
    finally:
        await made.close()


async def test_denied_calls_fail_as_the_filter_says(sandbox: Sandbox):
    numbers = seccomp.MACHINES[platform.machine()].numbers
    plain = [rule.call for group in seccomp.GROUPS.values() for rule in group if not rule.checks]
    plain += ["init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load"]
    plain += ["open_by_handle_at", "syslog"]
    output = await _output(sandbox, _calls(*((numbers[call], 3, 0, 0) for call in plain)))
    assert dict(zip(plain, map(int, output.split()), strict=True)) == dict.fromkeys(plain, EPERM)
    others = ((numbers["socket"], 40, 1, 0), (numbers["clone3"], 0, 0), (-1,), (1 << 30 | 39,))
    output = await _output(sandbox, _calls(*others))
    assert output.split() == [str(x) for x in (EAFNOSUPPORT, ENOSYS, ENOSYS, ENOSYS)]


async def test_calls_of_another_architecture_are_denied(sandbox: Sandbox):
    need("x86-64", None if platform.machine() == "x86_64" else "the code is for x86-64")
    # mov eax, 20 (getpid on i386); int 0x80; ret
    script = (
        "import ctypes, mmap\n"
        "m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3'))\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(at)())\n"
    )
    done = await sandbox.exec(["python3", "-c", script])
    assert done.stdout.text.strip() in (str(-ENOSYS), ""), done  # or a kernel without i386
    assert done.signal is None or not done.stdout.text


async def test_calls_are_allowed_by_name(permissive_backend: LocalBackend):
    numbers = seccomp.MACHINES[platform.machine()].numbers
    arguments = {"unshare": (1 << 28, 0, 0), "socket": (40, 1 << 20, 0), "keyctl": (0, -3, 0)}
    other = await _start(permissive_backend)
    for name in SYSTEM_CALLS:
        rules = [rule for rule in seccomp.GROUPS[name] if rule.call != "clone"]
        calls = [(numbers[rule.call], *arguments.get(rule.call, (-1, 0, 0))) for rule in rules]
        denied = [str(rule.error) for rule in rules]
        assert (await _output(other, _calls(*calls))).split() == denied
        made = await _start(permissive_backend, name)
        assert not set((await _output(made, _calls(*calls))).split()) & {*denied}, name
        await made.close()
    await other.close()


async def test_calls_that_the_config_does_not_allow_are_refused(backend: Backend, image: Image):
    with pytest.raises(SandboxUnsupported, match=r'"io-uring".*allow_system_calls'):
        await backend.create(image, spec(system_calls=("io-uring",)))


def _run_filter(program: bytes, arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """The verdict of the kernel on a call: an interpreter of the used BPF instructions."""
    data = [number & 0xFFFFFFFF, arch, 0, 0]
    for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]:
        data += [argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF]
    at = held = 0
    while True:
        code = int.from_bytes(program[at : at + 2], sys.byteorder)
        true, false = program[at + 2], program[at + 3]
        value = int.from_bytes(program[at + 4 : at + 8], sys.byteorder)
        at += 8
        match code:
            case 0x20:
                held = data[value // 4]
            case 0x06:
                return value
            case 0x15 | 0x35 | 0x45:
                met = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
                at += 8 * (true if met else false)
            case _:
                pytest.fail(f"instruction {code:#x}")


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_denies_the_same_on_every_machine(machine: str):
    found = seccomp.MACHINES[machine]
    program = seccomp.compile_filter(frozenset(), machine)

    def run(call: str | int, *arguments: int, arch: int = found.arch) -> int:
        number = call if isinstance(call, int) else found.numbers[call]
        return _run_filter(program, arch, number, arguments)

    allow, deny = 0x7FFF0000, 0x00050000
    user, cgroup, mount = 0x10000000, 0x02000000, 0x00020000
    for call in ("clone", "unshare"):
        for flags in (user, cgroup, user | mount | 17, cgroup | 1 << 40):
            assert run(call, flags) == deny | EPERM
        for flags in (0, 17, mount, 0x3D0F00):
            assert run(call, flags) == allow
    assert run("clone3") == deny | ENOSYS
    assert run("socket", 40) == deny | EAFNOSUPPORT
    assert all(run("socket", family) == allow for family in (1, 2, 10, 16))
    for call in ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setscheduler"):
        assert run(call, 1, 7) == run(call, 1 << 32 | 1, 7) == deny | EPERM
        assert run(call, 0, 7) == run(call, 11, 7) == allow
    for call, by_process, by_user in (("setpriority", 0, 2), ("ioprio_set", 1, 3)):
        assert run(call, by_process, 1) == run(call, by_user, 0) == deny | EPERM
        assert run(call, by_process, 0) == run(call, by_process + 1, 0) == allow
    for call in ("keyctl", "bpf", "io_uring_setup", "userfaultfd", "perf_event_open"):
        assert run(call) == deny | EPERM
    assert run(0) == run(1) == run(63) == allow
    assert run(0, arch=0x40000003) == deny | ENOSYS
    assert run(0x40000000) == run(-1) == deny | ENOSYS


def test_every_group_has_a_name_that_tasks_may_use():
    assert set(seccomp.GROUPS) == set(SYSTEM_CALLS)


ON_INIT = (
    "prlimit --pid 1 --nofile=3:3",
    "prlimit --pid 1 --as=1000000:1000000",
    "renice -n 19 -p 1",
    "renice -n 19 -g 1",
    "renice -n 19 -u root",
    "ionice -c 3 -p 1",
    "ionice -c 3 -P 1",
    "ionice -c 3 -u 0",
    "taskset -p 1 1",
    "chrt -i -p 0 1",
    "echo 1000 > /proc/1/oom_score_adj",
    "echo 1000 > /proc/1/task/1/oom_score_adj",
    "echo 19 > /proc/1/autogroup",
    "echo 0 > /proc/1/coredump_filter",
    "echo 301 > /proc/sys/kernel/pid_max",
)


def _init_of(sandbox: Sandbox) -> Path:
    """The /proc folder of a sandbox's init on the host."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
                mounts = (entry / "mountinfo").read_text()
            except OSError:
                continue
            pids = [line for line in status.splitlines() if line.startswith("NSpid:")]
            if pids and pids[0].split()[2:] == ["1"] and f"sandboxes/{sandbox.id}/up" in mounts:
                return entry
    raise AssertionError("the sandbox has no init")


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_init_cannot_be_changed_from_inside(sandbox: Sandbox, user: str):
    init = _init_of(sandbox)

    def state() -> tuple[str, str, list[str]]:
        rest = (init / "stat").read_text().rpartition(")")[2].split()
        return (init / "limits").read_text(), (init / "oom_score_adj").read_text(), rest[15:17]

    before = state()
    for attempt in ON_INIT:
        assert not (await sandbox.exec(attempt, user=user)).ok, attempt
    assert state() == before
    assert (await sandbox.exec("true")).ok


async def test_each_command_starts_with_the_same_limits(sandbox: Sandbox):
    ask = "ulimit -a; ulimit -Ha; nice; cat /proc/self/oom_score_adj"
    before = await _output(sandbox, ask)
    lower = "ulimit -n 20; ulimit -f 1; ulimit -s 100; prlimit --pid $PPID --nofile=9:9"
    await sandbox.exec(f"{lower}; sleep 60 &")
    assert await _output(sandbox, ask) == before
    # Even if the limits of init were changed.
    init = int(_init_of(sandbox).name)
    for limit in (resource.RLIMIT_STACK, resource.RLIMIT_NOFILE):
        resource.prlimit(init, limit, (1000, resource.prlimit(init, limit)[1]))
    assert await _output(sandbox, ask) == before
    assert int(await _output(sandbox, "ulimit -n")) <= 65_536
    assert await _output(sandbox, "ulimit -c; ulimit -s") == "0\n8192\n"


async def test_standard_input_is_not_a_device_of_the_host(sandbox: Sandbox):
    host = Path("/dev/null").stat()
    own = "stat -L -c '%d %i' /proc/self/fd/0"
    inside = await _output(sandbox, own)
    assert inside != f"{host.st_dev} {host.st_ino}\n"
    assert inside == await _output(sandbox, "stat -L -c '%d %i' /dev/null")
    # Even if the path is replaced, later commands read from the same device.
    await sandbox.exec("rm /dev/null; mkfifo /dev/null")
    assert await _output(sandbox, own) == inside
    assert await _output(sandbox, "timeout 9 cat; echo $?") == "0\n"


async def test_a_command_has_no_descriptor_of_the_host(sandbox: Sandbox):
    output = await _output(
        sandbox, "python3 -c 'import os; print(*sorted(os.listdir(\"/proc/self/fd\")))'"
    )
    assert output.split() == ["0", "1", "2", "3"]  # the last is the folder being listed
    assert "pipe" in await _output(sandbox, "readlink /proc/self/fd/1")


async def test_sandboxes_share_no_session_keyring_with_each_other_or_the_host(
    permissive_backend: LocalBackend,
):
    keyctl = seccomp.MACHINES[platform.machine()].numbers["keyctl"]
    ask = (
        "import ctypes; c = ctypes.CDLL(None, use_errno=True)\n"
        f"print(c.syscall({keyctl}, 0, ctypes.c_long(-3), 0))"
    )
    # In a separate process: asking gives a process without a session keyring a new one.
    host = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", ask], text=True)
    one, two = (
        await _start(permissive_backend, "keyrings"),
        await _start(permissive_backend, "keyrings"),
    )
    try:
        output = [await _output(made, f'python3 -c "{ask}"') for made in (one, one, two)]
        assert int(output[0]) > 0
        assert output[0] == output[1]
        assert len({host, *output}) == 3
    finally:
        await one.close()
        await two.close()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder of the host with another file system below it."""
    folder = tmp_path / "folder"
    with tmpfs(folder / "be low", "1m") as below:
        (below / "file").write_text("shared")
        yield folder


READ_ONLY = (
    "touch '/data/be low/new'",
    "echo x > '/data/be low/file'",
    "touch /data/new",
)


async def test_submounts_are_read_only(backend: Backend, image: Image, mounted: Path):
    made = await backend.create(image, spec(mounts=(Mount(mounted, "/data"),)))
    try:
        assert await _output(made, "cat '/data/be low/file'") == "shared"
        for attempt in READ_ONLY:
            assert "Read-only" in (await made.exec(attempt)).stderr.text, attempt
        lines = (await _output(made, "grep ' /data' /proc/self/mountinfo")).splitlines()
        assert len(lines) == 2
        assert all({"ro", "nosuid", "nodev"} <= {*line.split()[5].split(",")} for line in lines)
    finally:
        await made.close()


WITHOUT_MOUNT_SETATTR = """
import asyncio, errno, struct, sys
from pathlib import Path
from parts import spec
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.inside import seccomp
from plimsoll.sandboxes.protocol import ImageSource, Mount

old = ((0x20, 0, 0, 0), (0x15, 0, 1, 442), (0x06, 0, 0, 0x50000 | errno.ENOSYS),
       (0x06, 0, 0, 0x7FFF0000))
seccomp.install(b"".join(struct.pack("=HBBI", *x) for x in old))

async def main():
    async with LocalBackend(LocalOptions(home=Path(sys.argv[1]))) as backend:
        image = await backend.build(ImageSource(reference="x"))
        made = await backend.create(image, spec(mounts=(Mount(Path(sys.argv[2]), "/data"),)))
        for attempt in sys.argv[3:]:
            print((await made.exec(attempt)).stderr.text, end="")
        sealed = "grep -c ' /data.* ro,nosuid,nodev' /proc/self/mountinfo"
        print((await made.exec(sealed)).stdout.text)
        await made.close()

asyncio.run(main())
"""


def test_mounts_are_read_only_on_kernels_without_mount_setattr(home: Path, mounted: Path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MOUNT_SETATTR, str(home), str(mounted), *READ_ONLY],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    *output, mounts = done.stdout.split("\n")[:4]
    assert [line.endswith("Read-only file system") for line in output] == [True] * 3, done
    assert mounts == "2"


HOST_FILES = {
    "open": 0o644,
    "secret": 0o600,
    "sub/open": 0o755,
    "sub/key": 0o640,
    "shut/file": 0o644,
    "searched/file": 0o644,
    "sudo": 0o4111,
}


async def test_private_files_of_the_host_are_hidden(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(private_files, "_SCAN_SECONDS", 0.0)
    host = tmp_path / "host"
    for name, mode in HOST_FILES.items():
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).parent.chmod(0o755)
        (host / name).write_text("content")
        (host / name).chmod(mode)
    (host / "shut").chmod(0o700)
    (host / "searched").chmod(0o711)
    (host / "sub").chmod(0o775)
    options = LocalOptions(home=home, host_paths=("/opt", str(host)))

    async def seen(command: str) -> str:
        async with LocalBackend(options) as backend:
            made = await _start(backend)
            try:
                return await _output(made, command)
            finally:
                await made.close()

    listed = f"cd {host}; find . | sort; stat -c %a sub; cat open"
    assert (await seen(listed)).split() == [".", "./open", "./sub", "./sub/open", "./sudo",
                                            "775", "content"]  # fmt: skip
    (host / "sub/later").write_text("secret")
    (host / "sub/later").chmod(0o600)
    (host / "secret").chmod(0o644)
    (host / "another").write_text("")
    output = await seen(f"cd {host}; ls . sub; echo new > sub/later && cat sub/later")
    assert "later" not in output.split("\nnew")[0]
    assert {"another", "open", "secret", "new"} <= {*output.split()}
    assert (host / "sub/later").read_text() == "secret"


WORKS = {
    "gcc": "printf 'int main(){return 7;}' > a.c && gcc a.c -o a && ./a; test $? = 7",
    "git": "git init -q g && cd g && git -c user.name=a -c user.email=b commit -q --allow-empty "
    "-m x && git log --oneline | grep -q x",
    "strace": "strace -f -e trace=openat true 2>&1 | grep -q openat",
    "gdb": "printf 'int main(){return 7;}' > b.c && gcc -g b.c -o b && gdb -batch -ex run "
    "-ex quit ./b 2>&1 | grep -q 'exited with code 07'",
    "nice": "nice -n 5 true && ionice -c 3 true && taskset 1 true",
    "prlimit": "prlimit --nofile=100 sh -c 'test $(ulimit -n) = 100' && prlimit --pid $$ --core=0",
    "renice": "sleep 9 & renice -n 5 -p $! && kill $!",
    "tar": "mkdir d && tar cf d.tar d && tar xf d.tar",
    "perl": "perl -e 'fork; wait; print 1'",
    "timeout": "timeout 9 bash -c 'for i in 1 2 3; do (sleep 0.01) & done; wait'",
}
PYTHON = """
import asyncio, concurrent.futures as cf, multiprocessing as mp, socket, subprocess, threading
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    with cf.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(abs, [-1])) == [1]
    assert asyncio.run(asyncio.to_thread(abs, -3)) == 3
    assert subprocess.run(["true"]).returncode == 0
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
        kind = socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM
        socket.socket(family, kind).close()
"""


@pytest.mark.parametrize("program", WORKS)
async def test_ordinary_programs_work(sandbox: Sandbox, program: str):
    found = await sandbox.exec(["sh", "-c", f"command -v {program}"])
    need(program, None if found.ok else "it is not installed here")
    done = await sandbox.exec(f"cd /tmp && {WORKS[program]}", timeout=60)
    assert done.ok, done


async def test_processes_threads_and_sockets_of_python_work(sandbox: Sandbox):
    write = f"cat > /tmp/x.py <<'EOF'\n{PYTHON}\nEOF\npython3 /tmp/x.py"
    for user in ("root", "nobody"):
        done = await sandbox.exec(write if user == "root" else "python3 /tmp/x.py", user=user)
        assert done.ok, done
