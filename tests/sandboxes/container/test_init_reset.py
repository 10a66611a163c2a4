"""The reset to a baseline: new files are removed, changes are doubted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from init_client import BASELINE, RESET, STATUS, Init, started

SAME_SIZE_AND_TIME = """
import os
before = os.stat("/etc/group")
with open("/etc/group", "r+") as file:
    file.write("R")
os.utime("/etc/group", ns=(before.st_atime_ns, before.st_mtime_ns))
"""
LEFT_IN_QUEUE = """
import ctypes
assert ctypes.CDLL("librt.so.1").mq_open(b"/left", 0o102, 0o600, None) >= 0
"""
LEFT_IN_SYSV = "import ctypes; assert ctypes.CDLL(None).{call} >= 0"


@pytest.fixture
def init(tmp_path: Path) -> Iterator[Init]:
    with started(tmp_path) as running:
        running.said("mkdir -p /app/sub; echo x > /app/file; ln -s file /app/link; mkfifo /app/p")
        assert int(running.request(BASELINE)["entries"]) > 20
        yield running


def _python(init: Init, code: str) -> None:
    done = init.until_end(init.begin("python3", "-c", code))
    assert done.words == {"exit": "0"}, done.err


def test_an_unused_sandbox_is_proven_clean(init: Init):
    assert init.request(RESET) == {"done": "1", "removed": "0"}
    assert init.said("cat /app/file; ls -la / /app >/dev/null") == "x\n"  # reading is no change
    assert init.request(RESET) == {"done": "1", "removed": "0"}


ADDED = {
    "files": "touch /new /app/new /etc/new '/tmp/a\nb' /root/.hidden",
    "folders": "mkdir -p /app/a/b/c; echo x > /app/a/b/c/x; chmod 0 /app/a",
    "links": "ln -s /etc /app/etc; ln -s /nowhere /tmp/no",
    "pipes and sockets": "mkfifo /tmp/p; python3 -c 'import socket; "
    'socket.socket(socket.AF_UNIX).bind("/tmp/s")\'',
    "shared memory": "echo x > /dev/shm/x; mkdir /dev/shm/sub; echo x > /dev/shm/sub/x",
    "devices' folder": "echo x > /dev/hidden",
    "another user's": "mkdir /tmp/o; chown 12:34 /tmp/o",
    "a queue": f"python3 -c '{LEFT_IN_QUEUE}'",
}


@pytest.mark.parametrize("kind", ADDED)
def test_new_files_are_removed(init: Init, kind: str):
    before = init.said("find / -path /proc -prune -o -path /usr -prune -o -print | sort")
    init.said(ADDED[kind])
    answer = init.request(RESET)
    assert answer["done"] == "1", answer
    assert int(answer["removed"]) > 0
    assert init.said("find / -path /proc -prune -o -path /usr -prune -o -print | sort") == before


TIMES = "stat -c '%n %.Y %.X' / /app /app/sub /etc /tmp /dev/shm"
RETIMED = {
    "set": "touch -d @1234567.987654321 /app /app/sub / /dev/shm",
    "access alone": "touch -a -d @1234567.987654321 /app /app/sub / /dev/shm",
    "by what is added": "touch /app/sub/new /etc/new /new /dev/shm/new; mkdir /tmp/new",
    "by what was there for a moment": "touch /app/sub/new /etc/new; rm /app/sub/new /etc/new",
}


@pytest.mark.parametrize("kind", RETIMED)
def test_times_of_folders_are_restored(init: Init, kind: str):
    init.said("touch -d '2 days ago' /app /app/sub /etc")
    assert "entries" in init.request(BASELINE)
    assert init.request(RESET) == {"done": "1", "removed": "0"}
    before = init.said(TIMES)
    init.said(RETIMED[kind])
    assert init.said(TIMES) != before
    for _ in range(2):
        assert init.request(RESET)["done"] == "1"
        assert init.said(TIMES) == before


CHANGED = {
    "content": "echo y > /app/file",
    "appended": "echo y >> /etc/passwd",
    "touched": "touch /app/file",
    "touched back": "touch -r /app/file /tmp/ref; touch -r /tmp/ref /app/file",
    "mode": "chmod 600 /app/file",
    "mode and back": "chmod 600 /app/file; chmod 644 /app/file",
    "owner": "chown 1 /app/file",
    "link": "ln -sfn other /app/link",
    "replaced": "cp -p /app/file /app/copy; mv /app/copy /app/file",
    "linked": "ln /app/file /app/other",
    "a folder's mode": "chmod 777 /app/sub",
    "a folder's owner": "chown 1:1 /app/sub",
    "the root's mode": "chmod 777 /",
    "another kind": "rm /app/file; mkdir /app/file",
    "shared memory's mode": "chmod 700 /dev/shm",
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_changed_file_is_doubted(init: Init, kind: str):
    init.said(CHANGED[kind])
    answer = init.request(RESET)
    assert "was changed" in answer["doubt"]
    assert "done" not in answer


def test_a_change_with_restored_times_is_doubted(init: Init):
    _python(init, SAME_SIZE_AND_TIME)
    assert init.request(RESET)["doubt"] == "/etc/group was changed"


def test_a_change_right_after_the_baseline_is_doubted(init: Init):
    for _ in range(20):
        init.said("echo a > /app/file")
        assert "entries" in init.request(BASELINE)
        _python(init, SAME_SIZE_AND_TIME.replace("/etc/group", "/app/file"))
        assert init.request(RESET)["doubt"] == "/app/file was changed"


def test_a_folders_attribute_is_doubted(init: Init):
    code = "import os; os.setxattr('/app/sub', 'user.note', b'hello')"
    done = init.until_end(init.begin("python3", "-c", code))
    if b"not supported" in done.err:
        pytest.skip("this kernel's tmpfs has no attributes")
    assert init.request(RESET)["doubt"] == "/app/sub was changed"


@pytest.mark.parametrize("script", ["rm /app/file", "rmdir /app/sub", "rm /dev/null", "rm -r /app"])
def test_a_missing_file_is_doubted(init: Init, script: str):
    init.said(script)
    assert "missing" in init.request(RESET)["doubt"]


@pytest.mark.parametrize(
    "call", ["shmget(0, 4096, 0o1600)", "semget(0, 1, 0o1600)", "msgget(0, 0o1600)"]
)
def test_remaining_ipc_objects_are_doubted(init: Init, call: str):
    _python(init, LEFT_IN_SYSV.format(call=call))
    assert "System V IPC" in init.request(RESET)["doubt"]


def test_a_reset_ends_every_process_first(init: Init):
    loop = "(while :; do date > /tmp/now; done) >/dev/null 2>&1 & sleep 60 >/dev/null 2>&1 &"
    init.said(f"{loop} until [ -e /tmp/now ]; do sleep 0.01; done")
    running = init.begin("sleep", "60")
    number = init.ask(RESET)
    ends = init.until_ends(running, number)
    assert ends[running].words == {"signal": "9"}
    assert ends[number].words == {"done": "1", "removed": "1"}
    assert init.request(STATUS)["processes"] == "0"


def test_a_deep_tree_is_removed(init: Init):
    dig = "import os\nos.chdir('/tmp')\nfor _ in range(3000):\n os.mkdir('d'*20); os.chdir('d'*20)"
    _python(init, dig)
    assert init.request(RESET) == {"done": "1", "removed": "1"}


def test_a_reset_without_a_baseline_is_doubted(tmp_path: Path):
    with started(tmp_path) as init:
        assert init.request(RESET)["doubt"] == "no baseline was taken"


def test_excluded_paths_are_not_touched(init: Init):
    assert "entries" in init.request(BASELINE, "/app", "/tmp/kept")
    init.said("echo y > /app/file; echo y > /app/new; echo z > /tmp/kept; echo z > /tmp/gone")
    assert init.request(RESET) == {"done": "1", "removed": "1"}
    assert init.said("cat /app/file /app/new /tmp/kept; ls /tmp") == "y\ny\nz\nkept\n"


def test_a_later_baseline_replaces_the_earlier_one(init: Init):
    init.said("echo y > /app/file; echo y > /app/new")
    assert "entries" in init.request(BASELINE)
    assert init.request(RESET) == {"done": "1", "removed": "0"}
    assert init.said("cat /app/new") == "y\n"
