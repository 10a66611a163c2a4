"""Tunnels respect their windows in both directions, and end like sockets."""

import asyncio
import struct

import pytest

from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.permissions import NO_NETWORK
from plimsoll.sandboxes import connections
from plimsoll.sandboxes.container.frames import MAX_DATA, WINDOW, Kind, read_fields
from plimsoll.testing.waiting import until

FIRST = 1 << 31


def _field(word: str) -> bytes:
    return struct.pack("<I", len(word)) + word.encode()


async def _listening(init, sandbox, on_connection, port: int = 4711):
    """Serve on a simulated init. Returns the listener and the number of its request."""
    serving = asyncio.create_task(sandbox.serve(port, on_connection))
    _, number, payload = await init.next(Kind.LISTEN)
    assert read_fields(payload) == [b"127.0.0.1", str(port).encode()]
    init.end(number, port=port)
    return await serving, number


async def _connected(init, listening: int, tunnel: int = FIRST) -> None:
    init.send(Kind.CONNECT, tunnel, _field(str(listening)))


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def test_a_connection_right_after_the_response_is_served(start_fake):
    init, _, sandbox = await start_fake()
    serving = asyncio.create_task(sandbox.serve(0, _echo))
    _, number, _ = await init.next(Kind.LISTEN)
    end = b"".join(_field(word) for word in ("port", "4711"))
    data = struct.pack("<IBI", len(end), Kind.END, number) + end
    who = _field(str(number))
    data += struct.pack("<IBI", len(who), Kind.CONNECT, FIRST) + who
    init.send_raw(data + struct.pack("<IBI", 2, Kind.OUT, FIRST) + b"hi")
    assert await init.next() == (Kind.DATA, FIRST, b"hi")
    assert (await serving).port == 4711


async def test_unread_data_gives_no_credit(start_fake):
    init, _, sandbox = await start_fake()
    go_on = asyncio.Event()

    async def late(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await reader.readexactly(WINDOW)

    _, number = await _listening(init, sandbox, late)
    await _connected(init, number)
    granted = 0
    for _ in range(WINDOW // MAX_DATA):
        init.send(Kind.OUT, FIRST, b"x" * MAX_DATA)
    await asyncio.sleep(0.05)
    while not init.received_nothing():
        granted += struct.unpack("<I", (await init.next(Kind.GRANT))[2])[0]
    assert granted <= WINDOW // 2
    go_on.set()
    while granted <= WINDOW // 2:
        granted += struct.unpack("<I", (await init.next(Kind.GRANT))[2])[0]


async def test_sending_respects_the_credit_and_closing_waits_for_it(start_fake):
    init, _, sandbox = await start_fake()

    async def blurt(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * (WINDOW + 5))

    _, number = await _listening(init, sandbox, blurt)
    await _connected(init, number)
    for _ in range(WINDOW // MAX_DATA):
        assert len((await init.next(Kind.DATA))[2]) == MAX_DATA
    await asyncio.sleep(0.02)
    assert init.received_nothing()
    init.send(Kind.CREDIT, FIRST, struct.pack("<I", WINDOW))
    assert await init.next() == (Kind.DATA, FIRST, b"x" * 5)
    assert await init.next() == (Kind.DATA, FIRST, b"")
    await asyncio.sleep(0.02)
    assert init.received_nothing()  # the last five bytes are not acknowledged yet
    init.send(Kind.CREDIT, FIRST, struct.pack("<I", 5))
    assert await init.next() == (Kind.HANG_UP, FIRST, b"")


async def test_a_fast_writer_is_paused_until_the_peer_reads(start_fake):
    init, _, sandbox = await start_fake()
    drained, ended = 0, asyncio.Event()

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal drained
        try:
            while True:
                writer.write(b"x" * MAX_DATA)
                await writer.drain()
                drained += MAX_DATA
        finally:
            ended.set()

    _, number = await _listening(init, sandbox, flood)
    await _connected(init, number)
    for _ in range(WINDOW // MAX_DATA):
        assert await init.next() == (Kind.DATA, FIRST, b"x" * MAX_DATA)
    await asyncio.sleep(0.05)
    before = drained
    assert before <= 2 * WINDOW
    init.send(Kind.CREDIT, FIRST, struct.pack("<I", WINDOW))
    await until(lambda: drained > before)
    await asyncio.sleep(0.05)
    assert drained <= 3 * WINDOW
    init.send(Kind.CLOSE, FIRST)  # the peer is gone, which ends the flood
    await asyncio.wait_for(ended.wait(), 30)


async def test_the_server_sees_a_closed_peer(start_fake):
    init, _, sandbox = await start_fake()
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read())
        writer.write(b"to nobody")  # dropped without an error

    _, number = await _listening(init, sandbox, listen)
    await _connected(init, number)
    init.send(Kind.OUT, FIRST, b"bye")
    init.send(Kind.CLOSE, FIRST)
    assert await asyncio.wait_for(received, 30) == b"bye"
    await asyncio.sleep(0.02)
    assert init.received_nothing()


async def test_a_connection_to_a_closed_listener_is_closed(start_fake):
    init, _, sandbox = await start_fake()
    served, number = await _listening(init, sandbox, _echo)
    await served.close()
    assert await init.next() == (Kind.HANG_UP, number, b"")
    await _connected(init, number)
    assert await init.next() == (Kind.HANG_UP, FIRST, b"")


async def test_a_connection_over_the_limit_is_closed_and_forgotten(start_fake, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    init, _, sandbox = await start_fake()
    _, number = await _listening(init, sandbox, _echo)
    await _connected(init, number)
    for tunnel in (FIRST + 1, FIRST + 2):
        await _connected(init, number, tunnel)
        assert await init.next() == (Kind.HANG_UP, tunnel, b"")
    assert list(sandbox._channel._tunnels) == [FIRST]
    init.send(Kind.OUT, FIRST, b"hi")
    assert await init.next() == (Kind.DATA, FIRST, b"hi")


async def test_data_after_the_end_is_a_protocol_error(start_fake):
    init, _, sandbox = await start_fake()
    _, number = await _listening(init, sandbox, _echo)
    await _connected(init, number)
    init.send(Kind.OUT, FIRST, b"")
    init.send(Kind.OUT, FIRST, b"more")
    assert "violates the protocol" in (await sandbox.status()).reason


@pytest.mark.parametrize("words", [{"error": "Address already in use"}, {}])
async def test_a_socket_that_cannot_listen_is_an_error_and_leaves_nothing(start_fake, words):
    init, _, sandbox = await start_fake()
    serving = asyncio.create_task(sandbox.serve(80, _echo))
    _, number, _ = await init.next(Kind.LISTEN)
    init.end(number, **words)
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:80"):
        await serving
    assert not sandbox._listeners


async def test_a_dead_sandbox_ends_its_connections(start_fake):
    init, _, sandbox = await start_fake()
    lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except BaseException as error:
            lost.set_result(error)
            raise

    served, number = await _listening(init, sandbox, listen)
    await _connected(init, number)
    await asyncio.sleep(0.01)
    init.end_stream()
    assert str(await asyncio.wait_for(lost, 30)) == "it fell over"
    await served.close()
    with pytest.raises(SandboxUnavailable, match="it fell over"):
        await sandbox.serve(0, _echo)


async def test_a_reset_closes_listeners_and_returns_the_doubt(start_fake):
    init, _, sandbox = await start_fake()
    _, number = await _listening(init, sandbox, _echo)
    for words, doubt in (
        ({"done": "yes", "removed": 3}, ""),
        ({"doubt": "/x changed"}, "/x changed"),
    ):
        resetting = asyncio.create_task(sandbox.reset())
        if not doubt:
            assert (await init.next())[:2] == (Kind.HANG_UP, number)
        _, asked, _ = await init.next(Kind.RESET)
        init.end(asked, **words)
        assert await resetting == doubt


async def test_a_reset_applies_the_network_policy_again(start_fake):
    init, handle, sandbox = await start_fake()
    await sandbox.set_network(NO_NETWORK)
    await _listening(init, sandbox, _echo)
    resetting = asyncio.create_task(sandbox.reset())
    _, asked, _ = await init.next(Kind.RESET)
    assert handle.network == [NO_NETWORK]
    init.end(asked, done="yes")
    assert await resetting == ""
    assert handle.network == [NO_NETWORK, NO_NETWORK]  # the egress proxy is served again
