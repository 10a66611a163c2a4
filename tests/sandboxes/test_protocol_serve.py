"""Sockets inside a sandbox without a network, served by this process, for every backend."""

import asyncio
import contextlib
import logging

import pytest

from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.permissions import NO_NETWORK, PUBLIC
from plimsoll.sandboxes.protocol import ExecResult, Sandbox

pytestmark = pytest.mark.every_backend

CONNECT = "import socket, sys, threading; s = socket.create_connection(('127.0.0.1', {port}), 20); "
SEND = CONNECT + "s.sendall(b'{text}'); s.shutdown(1); print(s.makefile('rb').read())"
SIZE = 20 << 20
EXCHANGE = f"""
import hashlib
size = {SIZE}
sent = bytes(range(256)) * (size // 256)
threading.Thread(target=s.sendall, args=(sent,)).start()
got = s.makefile('rb').read(size)
print(got == sent, len(got))
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).upper())


async def _python(sandbox: Sandbox, code: str) -> ExecResult:
    return await sandbox.exec(["python3", "-c", code], timeout=60)


async def _reply(sandbox: Sandbox, port: int, text: str = "hello") -> str:
    done = await _python(sandbox, SEND.format(port=port, text=text))
    assert done.ok, done.complaint()
    return done.stdout.text


async def _until_closed(sandbox: Sandbox, port: int) -> None:
    """Wait until the port is closed: closing does not wait for the sandbox."""
    async with asyncio.timeout(60):
        while (await _python(sandbox, CONNECT.format(port=port))).ok:
            pass


async def test_a_command_without_a_network_reaches_the_served_socket(sandbox: Sandbox):
    served = await sandbox.serve(0, upper)
    assert 0 < served.port < 65536
    assert await _reply(sandbox, served.port) == "b'HELLO'\n"
    assert await _reply(sandbox, served.port, "again") == "b'AGAIN'\n"


async def test_the_requested_port_is_used(sandbox: Sandbox):
    served = await sandbox.serve(4711, upper)
    assert served.port == 4711
    assert await _reply(sandbox, 4711) == "b'HELLO'\n"


async def test_only_loopback_is_listened_on(sandbox: Sandbox):
    served = await sandbox.serve(0, upper)
    listening = await sandbox.exec("tail -n +2 /proc/net/tcp | cut -c 7-20")
    assert f"0100007F:{served.port:04X}" in listening.stdout.text
    assert "00000000:" not in listening.stdout.text.replace("00000000:0000", "")


async def test_megabytes_go_both_ways_at_once(sandbox: Sandbox):
    served = await sandbox.serve(0, echo)
    done = await _python(sandbox, CONNECT.format(port=served.port) + EXCHANGE)
    assert done.stdout.text == f"True {SIZE}\n", done.stderr.text


async def test_a_slow_server_causes_backpressure(sandbox: Sandbox):
    go_on = asyncio.Event()
    seen = 0

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        await go_on.wait()
        while data := await reader.read(1 << 16):
            seen += len(data)

    served = await sandbox.serve(0, late)
    send = f"s.setblocking(0); n = 0\nwhile n < {SIZE}:\n    n += s.send(b'x' * 65536)"
    done = await _python(sandbox, CONNECT.format(port=served.port) + send)
    assert "BlockingIOError" in done.stderr.text
    go_on.set()
    assert await _reply(sandbox, served.port) == "b''\n"
    assert 0 < seen < SIZE


async def test_a_slow_client_causes_backpressure(sandbox: Sandbox):
    written = 0
    cut = asyncio.Event()

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536
        finally:
            cut.set()

    served = await sandbox.serve(0, flood)
    idle = CONNECT.format(port=served.port) + "import time; time.sleep(1)"
    assert (await _python(sandbox, idle)).ok
    assert 0 < written < SIZE
    await asyncio.wait_for(cut.wait(), 30)  # the client is gone


async def test_each_side_can_half_close_first(sandbox: Sandbox):
    async def goodbye_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"over")
        writer.write_eof()
        received.set_result(await reader.read())

    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    assert await _reply(sandbox, (await sandbox.serve(0, upper)).port) == "b'HELLO'\n"
    served = await sandbox.serve(0, goodbye_first)
    code = "print(s.makefile('rb').read()); s.sendall(b'and out'); s.close()"
    done = await _python(sandbox, CONNECT.format(port=served.port) + code)
    assert done.stdout.text == "b'over'\n", done.stderr.text
    assert await asyncio.wait_for(received, 30) == b"and out"


async def test_all_data_arrives_before_an_immediate_close(sandbox: Sandbox):
    async def blurt(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * SIZE)
        writer.close()

    served = await sandbox.serve(0, blurt)
    code = "import time; time.sleep(0.5); print(len(s.makefile('rb').read()))"
    done = await _python(sandbox, CONNECT.format(port=served.port) + code)
    assert done.stdout.text == f"{SIZE}\n", done.stderr.text


async def test_fifty_connections_at_once_do_not_mix(sandbox: Sandbox):
    served = await sandbox.serve(0, echo)
    code = (
        "import socket, threading\n"
        f"ends = [socket.create_connection(('127.0.0.1', {served.port}), 120) for _ in range(50)]\n"
        "for n, s in enumerate(ends): s.sendall(b'%d ' % n * 5000)\n"
        "for s in ends: s.shutdown(1)\n"
        "print([s.makefile('rb').read() == b'%d ' % n * 5000 for n, s in enumerate(ends)].count(1))"
    )
    done = await _python(sandbox, code)
    assert done.stdout.text == "50\n", done.stderr.text


async def test_a_connection_outlives_a_change_of_the_network(sandbox: Sandbox):
    connected, may_reply = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await may_reply.wait()
        writer.write((await reader.read()).upper())

    served = await sandbox.serve(0, slow)
    talking = asyncio.create_task(_reply(sandbox, served.port))
    await asyncio.wait_for(connected.wait(), 30)
    await sandbox.set_network(PUBLIC)
    await sandbox.set_network(NO_NETWORK)
    may_reply.set()
    assert await talking == "b'HELLO'\n"
    assert await _reply(sandbox, served.port) == "b'HELLO'\n"


async def test_serving_works_with_a_public_network(sandbox: Sandbox):
    await sandbox.set_network(PUBLIC)
    served = await sandbox.serve(0, upper)
    assert await _reply(sandbox, served.port) == "b'HELLO'\n"


async def test_a_server_that_fails_ends_its_connection_only(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
):
    async def faulty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read() == b"bad":
            raise RuntimeError("a fault of its own")
        writer.write(b"fine")

    served = await sandbox.serve(0, faulty)
    with caplog.at_level(logging.ERROR):
        assert await _reply(sandbox, served.port, "bad") == "b''\n"
        assert await _reply(sandbox, served.port, "good") == "b'fine'\n"
    assert "a fault of its own" in caplog.text


async def test_a_port_in_use_is_an_error(sandbox: Sandbox):
    served = await sandbox.serve(0, upper)
    with pytest.raises(SandboxError, match=rf"{served.port}.*in use"):
        await sandbox.serve(served.port, upper)
    assert await _reply(sandbox, served.port) == "b'HELLO'\n"


async def test_an_invalid_port_is_an_error(sandbox: Sandbox):
    with pytest.raises(SandboxError, match="70000"):
        await sandbox.serve(70000, upper)
    assert (await sandbox.exec("true")).ok


async def test_closing_ends_connections_and_frees_the_port(sandbox: Sandbox):
    connected, cancelled = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    served = await sandbox.serve(0, hold)
    talking = asyncio.create_task(_python(sandbox, SEND.format(port=served.port, text="x")))
    await asyncio.wait_for(connected.wait(), 30)
    await asyncio.gather(served.close(), served.close())
    await served.close()
    assert cancelled.is_set()
    await asyncio.wait_for(talking, 30)
    await _until_closed(sandbox, served.port)
    again = await sandbox.serve(served.port, upper)
    assert await _reply(sandbox, again.port) == "b'HELLO'\n"


async def test_closing_a_sandbox_ends_its_connections(sandbox: Sandbox):
    connected = asyncio.Event()
    ended: list[BaseException | bytes] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        try:
            ended.append(await reader.read())
        except BaseException as error:
            ended.append(error)
            raise

    served = await sandbox.serve(0, hold)
    talk = CONNECT.format(port=served.port) + "import time; time.sleep(60)"
    talking = asyncio.create_task(_python(sandbox, talk))
    await asyncio.wait_for(connected.wait(), 30)
    await asyncio.wait_for(sandbox.close(), 30)
    with pytest.raises(SandboxUnavailable):
        await talking
    assert len(ended) == 1
    await served.close()


async def test_a_closed_sandbox_serves_nothing(sandbox: Sandbox):
    await sandbox.close()
    with pytest.raises(SandboxUnavailable):
        await sandbox.serve(0, upper)


async def test_a_call_cancelled_while_it_starts_to_listen_leaves_nothing_open(sandbox: Sandbox):
    for step in range(10):
        starting = asyncio.create_task(sandbox.serve(4711, upper))
        await asyncio.sleep(step * 0.0005)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).close()
        await _until_closed(sandbox, 4711)
    assert await _reply(sandbox, (await sandbox.serve(4711, upper)).port) == "b'HELLO'\n"
