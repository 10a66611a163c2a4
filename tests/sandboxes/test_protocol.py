"""Commands, streams and close of a sandbox: the promises of `protocol.py`, for every backend."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from parts import spec
from plimsoll.core.errors import SandboxError, SandboxUnavailable, SandboxUnsupported
from plimsoll.sandboxes.protocol import Backend, Image, Limits, Sandbox
from plimsoll.testing.waiting import until

pytestmark = pytest.mark.every_backend


async def test_an_argv_is_passed_unchanged(sandbox: Sandbox):
    words = ["a b", "", "$HOME", "*", "ünï", "it's"]
    done = await sandbox.exec(["printf", "%s\\n", *words])
    assert done.ok
    assert done.stdout.text.splitlines() == words


async def test_a_string_is_run_by_a_shell(sandbox: Sandbox):
    done = await sandbox.exec("x=$((6 * 7)); echo $x | cat; [[ a == a ]] && echo bash")
    assert done.stdout.text == "42\nbash\n"


async def test_a_command_starts_in_the_working_folder_or_the_given_one(
    backend: Backend, image: Image
):
    made = await backend.create(image, spec(workdir="/tmp"))
    try:
        assert made.workdir == "/tmp"
        assert (await made.exec("pwd")).stdout.text == "/tmp\n"
        assert (await made.exec("pwd", cwd="/usr")).stdout.text == "/usr\n"
    finally:
        await made.close()


async def test_a_missing_working_folder_fails_the_command(sandbox: Sandbox):
    done = await sandbox.exec(["true"], cwd="/no/such/folder")
    assert done.exit_code in (126, 127)
    assert "/no/such/folder" in done.stderr.text


async def test_the_environment_is_the_sandboxs_and_then_the_commands(
    backend: Backend, image: Image
):
    made = await backend.create(image, spec(env={"A": "1", "B": "1"}))
    try:
        done = await made.exec("echo $A $B $C", env={"B": "2", "C": "x y=z\nü"})
        assert done.stdout.text == "1 2 x y=z ü\n"
        assert (await made.exec("echo $A $B $C")).stdout.text == "1 1\n"
    finally:
        await made.close()


async def test_the_environment_of_plimsoll_does_not_reach_a_command(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PLIMSOLL_TEST_SECRET", "hush")
    done = await sandbox.exec("env; cat /proc/*/environ 2>/dev/null")
    assert "hush" not in done.stdout.text
    assert "PATH=" in done.stdout.text
    assert "HOME=/root" in done.stdout.text


async def test_a_user_is_found_by_name_and_by_number(sandbox: Sandbox):
    assert (await sandbox.exec("id -un")).stdout.text == "root\n"
    assert (await sandbox.exec("id -un", user="nobody")).stdout.text == "nobody\n"
    assert (await sandbox.exec("id -u; id -g", user="4321:1234")).stdout.text == "4321\n1234\n"


async def test_an_unknown_user_is_an_error_and_the_sandbox_lives_on(sandbox: Sandbox):
    for user in ("no-such-user", "root:no-such-group", "²", "99999999999"):
        with pytest.raises(SandboxUnsupported, match=user.split(":")[-1]):
            await sandbox.exec("true", user=user)
    assert (await sandbox.exec("true")).ok


async def test_without_stdin_a_command_reads_end_of_file(sandbox: Sandbox):
    done = await sandbox.exec("cat | wc -c", timeout=60)
    assert done.stdout.text == "0\n"


async def test_stdin_arrives_whole_however_large_and_binary(sandbox: Sandbox):
    sent = os.urandom(1 << 20) * 20
    seen = bytearray()
    done = await sandbox.exec(["cat"], stdin=sent, on_output=lambda _, chunk: seen.extend(chunk))
    assert done.ok
    assert seen == sent


async def test_a_command_that_does_not_read_its_stdin_ends(sandbox: Sandbox):
    assert (await sandbox.exec("exit 3", stdin=b"x" * (20 << 20), timeout=60)).exit_code == 3


async def test_exit_codes_are_reported(sandbox: Sandbox):
    for code in (0, 1, 42, 126, 127, 128, 137, 255):
        done = await sandbox.exec(f"exit {code}")
        assert (done.exit_code, done.signal, done.timed_out) == (code, None, False)
        assert done.ok == (code == 0)


async def test_signals_are_reported(sandbox: Sandbox):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGKILL, signal.SIGSEGV):
        done = await sandbox.exec(f"kill -{number} $$")
        assert (done.exit_code, done.signal, done.timed_out) == (None, number, False)
        assert not done.ok


async def test_a_missing_command_exits_127_with_a_message(sandbox: Sandbox):
    done = await sandbox.exec(["no-such-command", "x"])
    assert done.exit_code == 127
    assert "no-such-command" in done.stderr.text


async def test_a_file_that_cannot_be_run_exits_126_with_a_message(sandbox: Sandbox):
    done = await sandbox.exec(["/etc/passwd"])
    assert done.exit_code == 126
    assert "/etc/passwd" in done.stderr.text


@pytest.mark.parametrize("argv", [[], ["a\0b"], ["true", "\0"]])
async def test_an_impossible_argv_is_an_error(sandbox: Sandbox, argv: list[str]):
    try:
        done = await sandbox.exec(argv)
    except (SandboxError, ValueError):
        return
    assert not done.ok
    assert done.stderr.text


async def test_the_streams_are_kept_apart_and_in_order(sandbox: Sandbox):
    done = await sandbox.exec("for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    assert done.stdout.text == "o1\no2\no3\n"
    assert done.stderr.text == "e1\ne2\ne3\n"


async def test_output_is_streamed_while_the_command_runs(sandbox: Sandbox):
    seen: list[tuple[str, bytes]] = []
    command = "echo now; echo bad >&2; until [ -e /tmp/go ]; do sleep 0.05; done; echo later"
    running = asyncio.create_task(
        sandbox.exec(command, on_output=lambda stream, chunk: seen.append((stream, chunk)))
    )
    await until(lambda: len(seen) == 2)
    assert set(seen) == {("stdout", b"now\n"), ("stderr", b"bad\n")}
    await sandbox.exec("touch /tmp/go")
    await asyncio.wait_for(running, 60)
    assert seen[2:] == [("stdout", b"later\n")]


def _peak_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]


async def test_a_gigabyte_of_output_is_not_held_in_memory(sandbox: Sandbox):
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = _peak_memory()
    done = await sandbox.exec("head -c 1G /dev/zero", keep=100_000)
    assert done.ok
    assert done.stdout.total == 1 << 30
    assert len(done.stdout.head) + len(done.stdout.tail) == 100_000
    assert _peak_memory() - before < 50 << 20


@pytest.mark.parametrize("keep", [0, 1, 10, 1000])
async def test_the_beginning_and_the_end_of_output_are_kept(sandbox: Sandbox, keep: int):
    done = await sandbox.exec("seq 100000; seq 5 >&2", keep=keep)
    whole = "".join(f"{n}\n" for n in range(1, 100001)).encode()
    head, tail = done.stdout.head, done.stdout.tail
    assert done.stdout.total == len(whole)
    assert len(head) + len(tail) == keep
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert done.stderr.total == 10
    assert done.stdout.dropped == len(whole) - keep


async def test_fifty_commands_at_once_do_not_mix(sandbox: Sandbox):
    async def one(number: int) -> str:
        done = await sandbox.exec(f"cat; sleep 0.0{number % 7}; echo {number}", stdin=b"in ")
        return done.stdout.text

    outputs = await asyncio.gather(*(one(n) for n in range(50)))
    assert outputs == [f"in {n}\n" for n in range(50)]


async def test_only_the_three_streams_are_open_in_a_command(sandbox: Sandbox):
    # `ls` opens the folder that it lists.
    done = await sandbox.exec(["ls", "-l", "/proc/self/fd"])
    numbers = re.findall(r" (\d+) -> ", done.stdout.text)
    assert sorted(numbers) == ["0", "1", "2", "3"], done.stdout.text


async def test_the_next_command_sees_the_files_of_the_last(sandbox: Sandbox):
    await sandbox.exec("echo kept > /tmp/file; mkdir /new; echo tool > /usr/local/bin/tool")
    done = await sandbox.exec("cat /tmp/file /usr/local/bin/tool; ls -d /new")
    assert done.stdout.text == "kept\ntool\n/new\n"


async def test_sandboxes_of_one_image_do_not_see_each_other(
    backend: Backend, image: Image, sandbox: Sandbox
):
    other = await backend.create(image, spec())
    try:
        assert other.id != sandbox.id
        await sandbox.exec("echo mine > /tmp/mine; echo mine > /dev/shm/mine; sleep 99 & true")
        seen = await other.exec("ls /tmp /dev/shm; ls -d /proc/[0-9]*")
        assert "mine" not in seen.stdout.text
        assert (await other.status()).processes == 0
    finally:
        await other.close()


async def test_labels_are_carried(backend: Backend, image: Image):
    requested = spec()
    made = await backend.create(image, requested)
    assert made.labels == requested.labels
    await made.close()


async def test_a_status_counts_processes_without_the_init(sandbox: Sandbox):
    assert (await sandbox.status()).alive
    assert (await sandbox.status()).processes == 0
    await sandbox.exec("sleep 60 & sleep 60 & true")
    assert (await sandbox.status()).processes == 2


async def test_a_closed_sandbox_refuses_every_call(sandbox: Sandbox, tmp_path: Path):
    await sandbox.close()
    status = await sandbox.status()
    assert not status.alive
    assert status.reason
    (tmp_path / "file").write_text("x")
    for ask in (
        lambda: sandbox.exec("true"),
        lambda: sandbox.upload(tmp_path / "file", "/file"),
        lambda: sandbox.download("/etc/passwd", tmp_path / "out"),
        lambda: sandbox.empty("/tmp/x"),
        lambda: sandbox.kill_all(),
        lambda: sandbox.set_network(spec().network),
    ):
        with pytest.raises(SandboxUnavailable):
            await ask()


async def test_close_is_idempotent_and_concurrent(sandbox: Sandbox):
    await asyncio.gather(*(sandbox.close() for _ in range(5)))
    await sandbox.close()
    assert not (await sandbox.status()).alive


async def test_close_ends_a_running_command(sandbox: Sandbox):
    running = asyncio.create_task(sandbox.exec("sleep 600"))
    await asyncio.sleep(0.1)
    await sandbox.close()
    with pytest.raises(SandboxUnavailable):
        await asyncio.wait_for(running, 60)


async def test_a_cancelled_close_is_completed(sandbox: Sandbox):
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await sandbox.close()
    assert not (await sandbox.status()).alive


async def test_unavailable_gpus_are_refused(backend: Backend, image: Image):
    with pytest.raises(SandboxUnsupported, match="GPU"):
        await backend.create(image, spec(limits=Limits(gpus=1)))
