"""The local backend as an ordinary user, in a user namespace."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import plimsoll
from helpers import long_time, processes_with
from parts import need
from plimsoll.sandboxes.trees.removal import remove_folder

UID = 65534

SCRIPT = """
import asyncio, json, os, sys, time
from pathlib import Path
from plimsoll.core.errors import PlimsollError
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, Limits, Mount, SandboxSpec

HOME = Path(sys.argv[1])

def spec(**more):
    return SandboxSpec(Labels("r", "t", this_process(), time.time() + 600), **more)

async def main():
    async with LocalBackend(LocalOptions(home=HOME, **OPTIONS)) as backend:
        image = await backend.build(ImageSource(reference="x"))
        sandbox = await backend.create(image, spec(**MORE))
        output = await work(backend, image, sandbox)
        await sandbox.close()
        output["warnings"] = list(backend.warnings)
    output["left"] = os.listdir(HOME / "sandboxes")
    print(json.dumps(output))

async def run(sandbox, command, **more):
    done = await sandbox.exec(command, **more)
    return [done.exit_code, done.stdout.text, done.stderr.text]

MORE = {}
OPTIONS = {}
"""

Run = Callable[..., dict[str, object]]


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter. Each pytest that starts closes its temporary folders."""
    folder = Path(tempfile.mkdtemp(prefix="plimsoll-tests-user.", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    remove_folder(folder)


@pytest.fixture(scope="module")
def run(open_folder: Path) -> Run:
    """Run the function `work` of a script as an ordinary user, and return its result."""
    folder = open_folder
    # This interpreter and the source may be below a home that is closed to others.
    python = "/usr/bin/python3"
    version = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    same = Path(python).exists() and not subprocess.run([python, "-c", version]).returncode
    half_written = shutil.ignore_patterns("*.pyc.*")  # written by another process
    for module in (plimsoll, msgspec):
        source = Path(str(module.__file__)).parent
        shutil.copytree(source, folder / "lib" / source.name, ignore=half_written)
    (folder / "home").mkdir()
    shutil.chown(folder / "home", UID, UID)

    def run(work: str, *, prefix: tuple[str, ...] = ()) -> dict[str, object]:
        need("userns", None if same else f"{python} is not this version of Python")
        (folder / "script.py").write_text(f"{SCRIPT}\n{work}\nasyncio.run(main())\n")
        user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        done = subprocess.run(
            [*user, *prefix, python, str(folder / "script.py"), str(folder / "home")],
            env={"PYTHONPATH": str(folder / "lib"), "PATH": "/usr/bin:/bin"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=240,
        )
        if "this user may not create user namespaces" in done.stderr and not prefix:
            need("userns", done.stderr.strip().splitlines()[-1])
        return {"code": done.returncode, "stderr": done.stderr, **_json(done.stdout)}

    return run


def _json(text: str) -> dict[str, object]:
    return json.loads(text) if text.strip() else {}


def test_commands_files_and_network_work(run: Run):
    output = run("""
async def work(backend, image, sandbox):
    (HOME / "upload").write_text("up")
    await sandbox.upload(HOME / "upload", "/root/deep/file")
    await sandbox.download("/root/deep/file", HOME / "back")
    await sandbox.exec("sleep 60 &")
    return {
        "id": await run(sandbox, "id -u; cat /root/deep/file; hostname"),
        "write": await run(sandbox, "for d in /usr/local/bin /root /opt /etc /usr/lib /var/log "
                           "/home; do touch $d/new || exit 1; done"),
        "change": await run(sandbox, "cd /usr/bin; rm env id; echo x > env; cat env"),
        "network": await run(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1"),
        "pids": await run(sandbox, "ls -d /proc/[0-9]* | wc -l"),
        "mount": await run(sandbox, "mount -t tmpfs none /mnt"),
        "secret": await run(sandbox, "cat /proc/1/environ; ls /proc/1/root/"),
        "timeout": (await sandbox.exec("setsid sleep 60 & sleep 60", timeout=0.3)).timed_out,
        "kill": [await sandbox.kill_all(), (await sandbox.status()).processes],
        "null": await run(sandbox, "chmod 0 /dev/null; echo x > /dev/null; tty; "
                          "python3 -c 'import pty; pty.openpty()'"),
        "back": (HOME / "back").read_text(),
        "empty": [await sandbox.empty("/etc/apt"), await run(sandbox, "ls -A /etc/apt")],
    }
""")
    assert output["code"] == 0, output["stderr"]
    assert output["id"][1].startswith("0\nupplimsoll-")  # type: ignore[index]
    assert output["write"][0] == 0, output["write"]  # type: ignore[index]
    assert output["change"][:2] == [0, "x\n"], output["change"]  # type: ignore[index]
    assert output["network"][1].split() == ["lo"]  # type: ignore[index]
    assert int(output["pids"][1]) < 10  # type: ignore[index]
    assert output["mount"][0] != 0  # type: ignore[index]
    assert output["secret"][1] == ""  # type: ignore[index]
    assert output["timeout"] is True
    assert output["kill"] == [None, 0]
    assert output["null"][0] == 0, output["null"]  # type: ignore[index]
    assert output["back"] == "up"
    assert output["empty"] == [None, [0, "", ""]]
    assert output["left"] == []


def test_packages_can_be_installed_next_to_the_hosts(run: Run):
    output = run("""
async def work(backend, image, sandbox):
    where = "import site; print(site.getsitepackages()[0])"
    return {"done": await run(sandbox, f"cd $(python3 -c '{where}') && mkdir new && touch new/x")}
""")
    assert output["done"][0] == 0, output["done"]  # type: ignore[index]


def test_another_user_in_the_sandbox_is_refused(run: Run):
    output = run("""
async def work(backend, image, sandbox):
    try:
        return {"ran": await run(sandbox, "id", user="nobody")}
    except PlimsollError as error:
        return {"refused": str(error), "after": await run(sandbox, "true")}
""")
    assert "root" in str(output.get("refused")), output
    assert output["after"][0] == 0  # type: ignore[index]


@pytest.mark.parametrize("limit", ["memory_mb=100", "cpus=1", "pids=10"])
def test_limits_that_are_not_enforced_are_warned_about(run: Run, limit: str):
    output = run(f"""
MORE = {{"limits": Limits({limit})}}
async def work(backend, image, sandbox):
    groups = (name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    return {{"limited": "plimsoll-" + sandbox.id in groups}}
""")
    assert output["code"] == 0, output["stderr"]
    assert output["limited"] or any("not enforced" in x for x in output["warnings"]), output  # type: ignore[union-attr]


def test_a_mount_is_read_only(run: Run):
    output = run("""
MORE = {"mounts": (Mount(Path("/usr/share"), "/data"),)}
async def work(backend, image, sandbox):
    return {"seen": await run(sandbox, "ls /data | head -1"),
            "write": await run(sandbox, "touch /data/x")}
""")
    assert output["seen"][1], output  # type: ignore[index]
    assert output["write"][0] != 0  # type: ignore[index]


def test_folders_closed_to_their_owner_are_removed(run: Run):
    output = run("""
async def work(backend, image, sandbox):
    await sandbox.exec("mkdir -p /x/y/z; touch /x/y/z/f; chmod 0 /x/y/z /x/y /x")
    return {}
""")
    assert output["left"] == [], output


def test_a_killed_owner_leaves_no_process_and_the_next_start_reaps(run: Run):
    seconds = long_time()
    output = run(f"""
async def work(backend, image, sandbox):
    kill = lambda *_: os.kill(os.getpid(), 9)
    await sandbox.exec("setsid sleep {seconds} & echo; sleep {seconds}", on_output=kill)
""")
    assert output["code"] == -9, output
    output = run("""
async def work(backend, image, sandbox):
    return {"folders": len(os.listdir(HOME / "sandboxes"))}
""")
    assert processes_with(seconds) == []
    assert output["folders"] == 1, output
    assert output["left"] == []


def test_denied_user_namespaces_are_one_clear_error(run: Run, tmp_path: Path):
    # In its own user namespace a process can deny further ones.
    close = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all "
    prefix = ("unshare", "-U", "-r", "sh", "-c", f'{close} --inh-caps -all "$@"', "sh")
    output = run("async def work(*_): return {}", prefix=prefix)
    if "max_user_namespaces" in str(output["stderr"]) and "sh:" in str(output["stderr"]):
        need("userns", "max_user_namespaces cannot be written here")
    last = str(output["stderr"]).strip().splitlines()[-1]
    assert output["code"] == 1
    assert "SandboxUnavailable" in last
    assert "this user may not create user namespaces" in last
    assert "docker" in last


def test_a_socket_in_the_sandbox_is_served(run: Run):
    output = run(
        "async def work(backend, image, sandbox):\n"
        "    async def upper(reader, writer):\n"
        "        writer.write((await reader.read()).upper())\n"
        "    served = await sandbox.serve(80, upper)\n"
        "    ask = ('import socket; s = socket.create_connection((\"127.0.0.1\", 80), 9); '\n"
        "           's.sendall(b\"hello\"); s.shutdown(1); print(s.recv(9))')\n"
        "    return {'output': await run(sandbox, ['python3', '-c', ask])}\n"
    )
    assert output["output"] == [0, "b'HELLO'\n", ""], output


def test_attacks_fail_without_root_too(run: Run):
    output = run("""
ON_INIT = ("prlimit --pid 1 --nofile=3:3", "renice -n 19 -p 1", "taskset -p 1 1",
           "renice -n 19 -u root", "echo 900 > /proc/1/oom_score_adj",
           "echo 301 > /proc/sys/kernel/pid_max", "chmod 0 /proc/self/fd/0")
DENIED = ("unshare -Ur true", "unshare -UrmC true", "unshare -C true",
          "mount -t cgroup2 none /mnt", "mount -t tmpfs none /mnt",
          "python3 -c 'import socket; socket.socket(40, 1)'")
WORKS = ("python3 -c 'import multiprocessing as m; m.Pool(2).map(abs, [1])'", "nice -n 5 true",
         "prlimit --nofile=100 true", "setpriv --version", "sh -c 'sleep 0.01 & wait'")

async def work(backend, image, sandbox):
    before = await run(sandbox, "ulimit -a; ulimit -Ha")
    passed = [x for x in (*ON_INIT, *DENIED) if not (await run(sandbox, x))[0]]
    failed = [(x, y) for x in WORKS if (y := await run(sandbox, x))[0]]
    await sandbox.exec("ulimit -n 9; sleep 60 &")
    return {"passed": passed, "failed": failed, "null": os.stat("/dev/null").st_mode,
            "same": before == await run(sandbox, "ulimit -a; ulimit -Ha")}
""")
    assert output["code"] == 0, output["stderr"]
    assert (output["passed"], output["failed"], output["same"]) == ([], [], True), output
    assert output["null"] == Path("/dev/null").stat().st_mode


def test_private_files_of_the_user_are_hidden(run: Run):
    output = run("""
PLACE = HOME / "host"
for name, mode in (("open", 0o644), ("secret", 0o600), ("shut/file", 0o644)):
    (PLACE / name).parent.mkdir(exist_ok=True, parents=True)
    (PLACE / name).write_text("content")
    (PLACE / name).chmod(mode)
(PLACE / "shut").chmod(0o700)
OPTIONS = {"host_paths": ("/opt", str(PLACE))}
async def work(backend, image, sandbox):
    return {"seen": await run(sandbox, f"ls {PLACE}; cat {PLACE}/open; touch {PLACE}/secret")}
""")
    assert output["code"] == 0, output["stderr"]
    assert output["seen"] == [0, "open\ncontent", ""], output
