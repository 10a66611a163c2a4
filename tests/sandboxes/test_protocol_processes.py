"""Processes: a timeout or a cancelled call leaves none, a normal end keeps background ones."""

import asyncio

import pytest

from parts import spec
from plimsoll.core.errors import SandboxError
from plimsoll.sandboxes.protocol import Backend, ExecResult, Image, Limits, Sandbox

pytestmark = pytest.mark.every_backend

FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""
FILL = """
import os, time
try:
    while os.fork():
        pass
except OSError:
    print("full", flush=True)
time.sleep(600)
"""
NESTED_NAMESPACE = "unshare -Upf --mount-proc sh -c 'sleep 600 & sleep 600' || sleep 600"

STUBBORN = {
    "a plain child": "sleep 600",
    "children of children": "(sleep 600 & (sleep 600 & sleep 600)) ; sleep 600",
    "its own session": "setsid sleep 600 & sleep 600",
    "forked twice": "(setsid sh -c 'sleep 600 & exec sleep 600' &) ; sleep 600",
    "nohup": "nohup sleep 600 >/dev/null 2>&1 & sleep 600",
    "deaf to signals": "trap '' TERM INT HUP QUIT; while :; do sleep 600; done",
    "stopped": "sh -c 'kill -STOP $$' & sleep 600",
    "closes its streams": "(exec 0<&- 1>&- 2>&-; setsid sleep 600) & sleep 600",
    "busy": "while :; do :; done",
    "printing": "yes & yes >&2",
    "another user": "setpriv --reuid 65534 --regid 65534 --clear-groups sleep 600 & sleep 600",
    "a pid namespace of its own": NESTED_NAMESPACE,
    "a first thread that has ended": f"python3 -c '{FIRST_THREAD_ENDS}' & sleep 600",
    "stops its parent": "kill -STOP $PPID; sleep 600",
    "always another process": (
        "for i in 1 2 3 4 5 6 7 8; do perl -e 'while (1) { fork and exit }'; done; sleep 600"
    ),
}


async def _killed_in_time(sandbox: Sandbox, command: str, timeout: float = 0.3) -> ExecResult:
    return await asyncio.wait_for(sandbox.exec(command, timeout=timeout), 60)


@pytest.mark.parametrize("kind", STUBBORN)
async def test_a_timeout_kills_the_whole_tree(sandbox: Sandbox, kind: str):
    done = await _killed_in_time(sandbox, STUBBORN[kind])
    assert done.timed_out
    assert not done.ok
    assert (await sandbox.status()).processes == 0
    assert (await sandbox.exec("echo on")).stdout.text == "on\n"


@pytest.mark.parametrize("kind", STUBBORN)
async def test_a_cancelled_call_leaves_no_process(sandbox: Sandbox, kind: str):
    running = asyncio.create_task(sandbox.exec(STUBBORN[kind]))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert (await sandbox.status()).processes == 0


async def test_a_call_cancelled_at_any_moment_leaves_no_process(sandbox: Sandbox):
    for step in range(30):
        running = asyncio.create_task(sandbox.exec("setsid sleep 60 & sleep 60"))
        await asyncio.sleep(step * 0.0005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await sandbox.status()).processes == 0


async def test_a_call_cancelled_repeatedly_leaves_no_process(sandbox: Sandbox):
    running = asyncio.create_task(sandbox.exec("setsid sleep 60 & sleep 60"))
    await asyncio.sleep(0.1)
    for _ in range(5):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.status()).processes == 0


async def test_a_fork_bomb_is_bounded_and_killed(backend: Backend, image: Image):
    made = await backend.create(image, spec(limits=Limits(pids=100)))
    try:
        done = await _killed_in_time(made, "f() { f | f & }; f; sleep 600", timeout=1.0)
        assert done.timed_out
        assert (await made.status()).processes == 0
        assert (await made.exec("echo on")).stdout.text == "on\n"
    finally:
        await made.close()


async def test_a_full_process_table_does_not_end_the_sandbox(backend: Backend, image: Image):
    made = await backend.create(image, spec(limits=Limits(pids=20)))
    try:
        full = asyncio.Event()
        filling = made.exec(["python3", "-c", FILL], on_output=lambda *_: full.set())
        running = asyncio.create_task(filling)
        await asyncio.wait_for(full.wait(), 60)
        try:
            assert not (await made.exec("true", timeout=5)).ok
        except SandboxError as error:
            assert "process" in str(error)  # names the limit
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await made.kill_all()
        assert (await made.exec("echo on")).stdout.text == "on\n"
    finally:
        await made.close()


async def test_a_timeout_keeps_the_output_so_far(sandbox: Sandbox):
    done = await sandbox.exec("echo out; echo err >&2; sleep 60", timeout=2)
    assert done.timed_out
    assert (done.stdout.text, done.stderr.text) == ("out\n", "err\n")
    assert "timed out" in done.describe()


async def test_a_command_that_ends_in_time_is_not_timed_out(sandbox: Sandbox):
    done = await sandbox.exec("sleep 0.1; exit 7", timeout=30)
    assert (done.exit_code, done.timed_out) == (7, False)


async def test_a_timeout_kills_only_its_own_command(sandbox: Sandbox):
    await sandbox.exec("sleep 60 & true")
    waits = "until [ -e /tmp/go ]; do sleep 0.05; done; echo other"
    other = asyncio.create_task(sandbox.exec(waits))
    assert (await sandbox.exec("sleep 60", timeout=0.2)).timed_out
    assert (await sandbox.status()).processes >= 2  # type: ignore[operator]
    await sandbox.exec("touch /tmp/go")
    assert (await asyncio.wait_for(other, 60)).stdout.text == "other\n"


async def test_a_background_process_outlives_its_command_and_may_print(sandbox: Sandbox):
    waits = "until [ -e /tmp/go ]; do sleep 0.05; done"
    prints = "for i in $(seq 20000); do echo line $i; done; echo end > /tmp/end"
    done = await asyncio.wait_for(sandbox.exec(f"({waits}; {prints}) & echo up"), 60)
    assert done.stdout.text == "up\n"
    ends = "touch /tmp/go; until [ -e /tmp/end ]; do sleep 0.05; done"
    waited = await sandbox.exec(ends, timeout=60)
    assert waited.ok


async def test_a_daemon_of_one_command_serves_the_next(sandbox: Sandbox):
    await sandbox.exec("python3 -m http.server 8123 --bind 127.0.0.1 >/tmp/log 2>&1 &")
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/').status)"
    script = f'for i in $(seq 300); do python3 -c "{fetch}" 2>/dev/null && break; sleep 0.1; done'
    assert (await sandbox.exec(script, timeout=60)).stdout.text == "200\n"


async def test_kill_all_leaves_only_the_init(sandbox: Sandbox):
    for kind, command in STUBBORN.items():
        if kind != "stops its parent":
            await sandbox.exec(f"({command}) >/dev/null 2>&1 &")
    running = asyncio.create_task(sandbox.exec("sleep 600"))
    await asyncio.sleep(0.3)
    await asyncio.wait_for(sandbox.kill_all(), 60)
    assert (await sandbox.status()).processes == 0
    assert (await asyncio.wait_for(running, 60)).signal == 9
    assert (await sandbox.exec("echo on")).stdout.text == "on\n"


async def test_kill_all_without_processes_does_nothing(sandbox: Sandbox):
    await sandbox.kill_all()
    await sandbox.kill_all()
    assert (await sandbox.exec("true")).ok


async def test_the_init_cannot_be_killed_from_inside(sandbox: Sandbox):
    for number in ("KILL", "TERM", "INT", "STOP", "SEGV", "HUP", "CHLD", "PIPE"):
        await sandbox.exec(f"kill -{number} 1")
        assert (await sandbox.exec("echo on", timeout=30)).stdout.text == "on\n"


async def test_killing_everything_from_inside_ends_the_command_not_the_sandbox(sandbox: Sandbox):
    done = await sandbox.exec("kill -9 -1; sleep 60", timeout=5)
    assert not done.timed_out or (await sandbox.status()).processes == 0
    await sandbox.kill_all()
    assert (await sandbox.exec("echo on")).stdout.text == "on\n"


async def test_a_command_that_kills_its_parent_does_not_outlive_kill_all(sandbox: Sandbox):
    await sandbox.exec("kill -9 $PPID; sleep 60", timeout=2)
    await sandbox.kill_all()
    assert (await sandbox.status()).processes == 0
    assert (await sandbox.exec("echo on")).stdout.text == "on\n"


@pytest.mark.parametrize(
    "damage",
    {
        "nonsense": "echo 'root:x:zz:y:r:/root:/bin/sh' > /etc/passwd",
        "groups": "printf 'wheel:x:zz:root\\n' > /etc/group",
        "binary": "head -c 100000 /dev/urandom > /etc/passwd; cp /etc/passwd /etc/group",
        "a pipe": "rm /etc/passwd; mkfifo /etc/passwd",
        "endless": "ln -sf /dev/zero /etc/passwd",
        "huge": "truncate -s 1T /etc/passwd",
        "gone": "rm /etc/passwd /etc/group",
    }.items(),
    ids=lambda damage: damage[0],
)
async def test_no_account_file_of_an_agent_ends_the_sandbox(
    backend: Backend, image: Image, damage: tuple[str, str]
):
    made = await backend.create(image, spec(limits=Limits(memory_mb=256)))
    try:
        await made.exec(damage[1])
        async with asyncio.timeout(60):
            # Without a shell, which would read the account files itself.
            done = await made.exec(["echo", "on"], timeout=30)
            await made.kill_all()
        assert done.stdout.text == "on\n"
    finally:
        await made.close()
