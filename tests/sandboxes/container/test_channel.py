"""A stream to an init that errs, lies, stops or dies: every waiter fails in time."""

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from parts import spec
from plimsoll.core.errors import SandboxError, SandboxUnavailable, SandboxUnsupported
from plimsoll.sandboxes.container import channel, commands
from plimsoll.sandboxes.container.frames import MAX_DATA, WINDOW, Kind, read_fields
from plimsoll.sandboxes.container.sandbox import ContainerSandbox

NONSENSE = {
    "garbage": b"garbage, garbage",
    "a huge length": struct.pack("<IBI", (1 << 32) - 1, Kind.END, 1),
    "a frame that only the host sends": struct.pack("<IBI", 0, Kind.EXEC, 1),
    "an end that is no list": struct.pack("<IBI", 3, Kind.END, 1) + b"abc",
    "an exit that is no number": struct.pack("<IBIIB", 10, Kind.END, 1, 4, 101) + b"xit\1\0",
    "a second greeting": struct.pack("<IBI", 0, Kind.READY, 0),
    "a connection to nothing": struct.pack("<IBI", 5, Kind.CONNECT, 1 << 31) + b"\1\0\0\0x",
    "a connection by a request's number": struct.pack("<IBI", 5, Kind.CONNECT, 7) + b"\1\0\0\0001",
    "credit for nothing": struct.pack("<IBII", 4, Kind.CREDIT, 1, 1),
    "credit without a count": struct.pack("<IBI", 0, Kind.CREDIT, 1),
    "an end without an exit": struct.pack("<IBI", 0, Kind.END, 1),
}


@pytest.fixture(autouse=True)
def unhandled() -> list[dict[str, object]]:
    """Exceptions that reached the event loop's handler; there must be none."""
    return []


@pytest.fixture(autouse=True)
async def nothing_unhandled(unhandled: list[dict[str, object]]):
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    yield
    await asyncio.sleep(0)
    assert not unhandled


@pytest.mark.parametrize("kind", NONSENSE)
async def test_a_protocol_error_ends_the_sandbox(start_fake, kind: str):
    init, handle, sandbox = await start_fake()
    running = asyncio.create_task(sandbox.exec("true"))
    await init.next(Kind.EXEC)
    init.send_raw(NONSENSE[kind])
    with pytest.raises(SandboxUnavailable, match="violates the protocol"):
        await asyncio.wait_for(running, 30)
    with pytest.raises(SandboxUnavailable, match="violates the protocol"):
        await sandbox.exec("true")
    assert "violates the protocol" in (await sandbox.status()).reason
    assert handle.asked == 0
    await sandbox.close()
    assert init.closed


async def test_frames_split_anywhere_are_decoded(start_fake):
    init, _, sandbox = await start_fake()
    running = asyncio.create_task(sandbox.exec("true"))
    _, number, _ = await init.next(Kind.EXEC)
    frames = struct.pack("<IBI", 5, Kind.OUT, number) + b"hello"
    frames += struct.pack("<IBI", 2, Kind.ERR, number) + b"oh"
    frames += struct.pack("<IBII4sI1s", 13, Kind.END, number, 4, b"exit", 1, b"7")
    for byte in frames:
        init.send_raw(bytes([byte]))
    done = await running
    assert (done.stdout.data, done.stderr.data, done.exit_code) == (b"hello", b"oh", 7)


async def test_the_end_of_the_stream_fails_all_waiters_with_one_reason(start_fake, tmp_path: Path):
    init, handle, sandbox = await start_fake()
    handle.why = "the kernel killed it for memory"
    waiting = [asyncio.create_task(sandbox.exec("true")) for _ in range(5)]
    waiting.append(asyncio.create_task(sandbox.download("/x", tmp_path / "x")))
    waiting.append(asyncio.create_task(sandbox.kill_all()))
    await init.next(Kind.KILL_ALL)
    init.complain(b"init: out of ")
    init.complain(b"memory\n")
    init.end_stream()
    for task in waiting:
        with pytest.raises(SandboxUnavailable) as caught:
            await asyncio.wait_for(task, 30)
        assert str(caught.value) == (
            "the kernel killed it for memory; its init printed: init: out of memory"
        )
    assert handle.asked == 1
    assert (await sandbox.status()).reason.startswith("the kernel killed it for memory")


async def test_a_failed_read_ends_the_sandbox(start_fake):
    init, handle, sandbox = await start_fake()
    running = asyncio.create_task(sandbox.exec("true"))
    await init.next(Kind.EXEC)
    init.end_stream(ConnectionResetError("by the daemon"))
    with pytest.raises(SandboxUnavailable, match="it fell over"):
        await asyncio.wait_for(running, 30)
    assert handle.asked == 1


async def test_a_failed_write_ends_the_sandbox(start_fake):
    init, handle, sandbox = await start_fake()
    init.closed = True
    with pytest.raises(SandboxUnavailable, match="it fell over"):
        await asyncio.wait_for(sandbox.exec("true"), 30)
    assert handle.asked == 1


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_handle_without_a_reason_leaves_no_waiter(
    start_fake, monkeypatch: pytest.MonkeyPatch, how: str
):
    init, _, sandbox = await start_fake()
    monkeypatch.setattr(channel, "_REASON_SECONDS", 0.1)

    async def no_answer() -> str:
        if how == "fails":
            raise SandboxError("the daemon is away")
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(sandbox._channel, "_exit_reason", no_answer)
    running = asyncio.create_task(sandbox.exec("true"))
    await init.next(Kind.EXEC)
    init.end_stream(OSError("broken"))
    with pytest.raises(SandboxUnavailable, match="gone: broken"):
        await asyncio.wait_for(running, 30)


async def test_a_silent_init_is_probed_and_then_closed(start_fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(channel, "_SILENCE_SECONDS", 0.5)
    init, _, sandbox = await start_fake()
    await asyncio.sleep(0.8)
    assert init.received_nothing()  # no request is pending, so there is no probe
    running = asyncio.create_task(sandbox.exec("sleep 60"))
    _, number, _ = await init.next(Kind.STATUS)
    init.end(number, processes=1)
    _, _, _ = await init.next(Kind.STATUS)
    with pytest.raises(SandboxUnavailable, match="has not answered"):
        await asyncio.wait_for(running, 30)


async def test_a_sandbox_without_a_greeting_does_not_start(start_fake: Callable[..., object]):
    from_test = type((await start_fake())[0]), type((await start_fake())[1])
    for greeting, match in (
        (None, "did not answer within"),
        (b"HTTP/1.1 400", "violates the protocol"),
    ):
        init, handle = from_test[0](), from_test[1]()
        if greeting:
            init.send_raw(greeting)
        closed: list[object] = []
        with pytest.raises(SandboxUnavailable, match=match):
            await ContainerSandbox.start(
                init, spec(), handle=handle, env={}, workdir="/", user="",
                on_close=closed.append, ready_seconds=0.1,
            )  # fmt: skip
        assert (handle.removed, len(closed), init.closed) == (1, 1, True)


async def test_a_cancelled_start_removes_the_container(start_fake: Callable[..., object]):
    init, handle = type((await start_fake())[0])(), type((await start_fake())[1])()
    starting = asyncio.create_task(
        ContainerSandbox.start(
            init, spec(), handle=handle, env={}, workdir="/", user="", on_close=lambda _: None
        )
    )
    await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (handle.removed, init.closed) == (1, True)


async def test_a_command_is_sent_unchanged(start_fake):
    init, handle, sandbox = await start_fake()
    handle.env = {"HTTP_PROXY": "http://127.0.0.1:1", "A": "net"}
    await sandbox.set_network(spec().network)
    command = ["a b", "ü", "\udcff", ""]
    running = asyncio.create_task(
        sandbox.exec(command, env={"B": "2"}, user="nobody", stdin=b"in", timeout=60)
    )
    _, number, payload = await init.next(Kind.EXEC)
    assert read_fields(payload) == [
        b"", b"/w", b"nobody", b"4", b"a b", "ü".encode(), b"\xff", b"",
        b"A=net", b"HTTP_PROXY=http://127.0.0.1:1", b"B=2",
    ]  # fmt: skip
    assert await init.next() == (Kind.DATA, number, b"in")
    assert await init.next() == (Kind.DATA, number, b"")
    init.end(number, signal=11)
    done = await running
    assert (done.exit_code, done.signal, done.ok) == (None, 11, False)


async def test_an_unknown_user_is_unsupported_and_a_failed_start_unavailable(start_fake):
    init, _, sandbox = await start_fake()
    for word, error in (("nouser", SandboxUnsupported), ("error", SandboxUnavailable)):
        running = asyncio.create_task(sandbox.exec("true"))
        _, number, _ = await init.next(Kind.EXEC)
        init.end(number, **{word: "there is none"})
        with pytest.raises(error, match="there is none"):
            await running
    assert sandbox._channel.gone is None


@pytest.mark.parametrize(
    "more",
    [
        {"command": ["a\0b"]},
        {"command": ["true", "\ud800"]},
        {"command": ["true"], "env": {"A": "\0"}},
        {"command": ["true"], "env": {"A=B": "x"}},
        {"command": ["true"], "cwd": "/a\0"},
    ],
)
async def test_an_impossible_command_fails_with_an_exit_code(start_fake, more):
    init, _, sandbox = await start_fake()
    done = await sandbox.exec(more.pop("command"), **more)
    assert done.exit_code == 126
    assert done.stderr.text.startswith("plimsoll: ")
    assert init.received_nothing()


async def test_a_command_too_large_for_a_request_fails_with_an_exit_code(start_fake, monkeypatch):
    monkeypatch.setattr(channel, "MAX_REQUEST", 1000)
    init, _, sandbox = await start_fake()
    done = await sandbox.exec(["echo", "x" * 1000])
    assert done.exit_code == 126
    assert "too large" in done.stderr.text
    assert init.received_nothing()


async def test_input_respects_the_credit(start_fake):
    init, _, sandbox = await start_fake()
    sent = bytes(range(256)) * 4096 + b"the rest"
    running = asyncio.create_task(sandbox.exec(["cat"], stdin=sent))
    _, number, _ = await init.next(Kind.EXEC)
    got, unacknowledged = bytearray(), 0
    while True:
        if unacknowledged == WINDOW:
            await asyncio.sleep(0.01)
            assert init.received_nothing()
            init.send(Kind.CREDIT, number, struct.pack("<I", unacknowledged))
            unacknowledged = 0
        _, _, data = await init.next(Kind.DATA)
        assert len(data) <= MAX_DATA
        if not data:
            break
        got += data
        unacknowledged += len(data)
        assert unacknowledged <= WINDOW
    assert got == sent
    init.end(number, exit=0)
    assert (await running).ok


async def test_a_command_may_end_before_reading_its_input(start_fake):
    init, _, sandbox = await start_fake()
    running = asyncio.create_task(sandbox.exec(["true"], stdin=b"x" * (1 << 20)))
    _, number, _ = await init.next(Kind.EXEC)
    init.end(number, exit=3)
    init.send(Kind.CREDIT, number, struct.pack("<I", WINDOW))  # late credit is ignored
    assert (await running).exit_code == 3
    assert (await sandbox.exec("\0")).exit_code == 126


async def test_a_timeout_kills_and_waits_for_the_end(start_fake):
    init, _, sandbox = await start_fake()
    running = asyncio.create_task(sandbox.exec("sleep 60", timeout=0.05))
    _, number, _ = await init.next(Kind.KILL)
    init.send(Kind.OUT, number, b"last")
    init.end(number, signal=9)
    done = await running
    assert (done.timed_out, done.signal, done.stdout.text) == (True, 9, "last")


async def test_a_cancelled_call_kills_and_waits_for_the_end(start_fake):
    init, _, sandbox = await start_fake()
    running = asyncio.create_task(sandbox.exec("sleep 60"))
    await init.next(Kind.EXEC)
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0.01)
    assert not running.done()
    _, number, _ = await init.next(Kind.KILL)
    init.end(number, signal=9)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 30)


async def test_an_unkillable_command_closes_the_sandbox(
    start_fake, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commands, "_KILL_SECONDS", 0.1)
    _, _, sandbox = await start_fake()
    other = asyncio.create_task(sandbox.exec("true"))
    with pytest.raises(SandboxUnavailable, match="cannot be killed"):
        await asyncio.wait_for(sandbox.exec("sleep 60", timeout=0.05), 30)
    with pytest.raises(SandboxUnavailable, match="cannot be killed"):
        await other


async def test_a_blocked_stream_does_not_delay_timeout_and_close(
    start_fake, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commands, "_KILL_SECONDS", 0.1)
    init, handle, sandbox = await start_fake()
    init.stuck.clear()
    with pytest.raises(SandboxUnavailable, match="cannot be killed"):
        await asyncio.wait_for(sandbox.exec("true", timeout=0.05), 30)
    await asyncio.wait_for(sandbox.close(), 30)
    assert handle.removed == 1


async def test_an_exception_in_on_output_ends_only_its_command(start_fake):
    init, _, sandbox = await start_fake()

    def faulty(stream: str, chunk: bytes) -> None:
        raise RuntimeError("a fault of the caller's")

    running = asyncio.create_task(sandbox.exec("yes", on_output=faulty))
    other = asyncio.create_task(sandbox.exec("true"))
    _, first, _ = await init.next(Kind.EXEC)
    _, second, _ = await init.next(Kind.EXEC)
    init.send(Kind.OUT, first, b"y\n")
    assert (await init.next(Kind.KILL))[1] == first
    init.send(Kind.OUT, first, b"y\n")
    init.end(first, signal=9)
    init.end(second, exit=0)
    with pytest.raises(RuntimeError, match="caller's"):
        await running
    assert (await other).ok


async def test_a_cancelled_close_still_completes(start_fake):
    init, handle, sandbox = await start_fake()
    handle.removing.clear()
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert (init.closed, handle.removed) == (True, 0)
    handle.removing.set()
    await asyncio.gather(*(sandbox.close() for _ in range(3)))
    assert (handle.removed, handle.asked) == (1, 0)
    with pytest.raises(SandboxUnavailable, match="the sandbox was closed"):
        await sandbox.exec("true")
    assert (await sandbox.status()).reason == "the sandbox was closed"


async def test_output_of_an_unknown_request_is_dropped(start_fake):
    init, _, sandbox = await start_fake()
    for number in (99, 1 << 31):
        init.send(Kind.OUT, number, b"x")
        init.send(Kind.CREDIT, number, struct.pack("<I", 5))
    init.end(99, exit=0)
    init.send(Kind.CLOSE, 1 << 31)
    running = asyncio.create_task(sandbox.exec("true"))
    _, number, _ = await init.next(Kind.EXEC)
    init.end(number, exit=0)
    assert (await running).ok
