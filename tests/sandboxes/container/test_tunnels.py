"""Tunnels keep to their windows in both directions, and end as a socket does."""

import asyncio
import struct

import pytest

from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.permissions import NO_NETWORK
from plimsoll.sandboxes.container.frames import LARGEST_DATA, WINDOW, Kind, read_fields

FIRST = 1 << 31


def _field(word: str) -> bytes:
    return struct.pack("<I", len(word)) + word.encode()


async def _listening(init, sandbox, on_connection, port: int = 4711):
    """Serve on a fake init; the served socket, and the number of its request."""
    serving = asyncio.create_task(sandbox.serve(port, on_connection))
    _, number, payload = await init.next(Kind.LISTEN)
    assert read_fields(payload) == [b"127.0.0.1", str(port).encode()]
    init.end(number, port=port)
    return await serving, number


async def _connected(init, listening: int, tunnel: int = FIRST) -> None:
    init.say(Kind.CONNECT, tunnel, _field(str(listening)))


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def test_a_connection_that_comes_with_the_answer_is_served(start_fake):
    init, _, sandbox = await start_fake()
    serving = asyncio.create_task(sandbox.serve(0, _echo))
    _, number, _ = await init.next(Kind.LISTEN)
    end = b"".join(_field(word) for word in ("port", "4711"))
    data = struct.pack("<IBI", len(end), Kind.END, number) + end
    who = _field(str(number))
    data += struct.pack("<IBI", len(who), Kind.CONNECT, FIRST) + who
    init.say_raw(data + struct.pack("<IBI", 2, Kind.OUT, FIRST) + b"hi")
    assert await init.next() == (Kind.DATA, FIRST, b"hi")
    assert (await serving).port == 4711


async def test_what_is_not_read_is_not_granted(start_fake):
    init, _, sandbox = await start_fake()
    go_on = asyncio.Event()

    async def late(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await reader.readexactly(WINDOW)

    _, number = await _listening(init, sandbox, late)
    await _connected(init, number)
    granted = 0
    for _ in range(WINDOW // LARGEST_DATA):
        init.say(Kind.OUT, FIRST, b"x" * LARGEST_DATA)
    await asyncio.sleep(0.05)
    while not init.nothing_came():
        granted += struct.unpack("<I", (await init.next(Kind.GRANT))[2])[0]
    assert granted <= WINDOW // 2
    go_on.set()
    granted += struct.unpack("<I", (await init.next(Kind.GRANT))[2])[0]
    assert granted > WINDOW // 2


async def test_no_more_is_sent_than_the_peer_takes_and_closing_waits_for_it(start_fake):
    init, _, sandbox = await start_fake()

    async def blurt(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * (WINDOW + 5))

    _, number = await _listening(init, sandbox, blurt)
    await _connected(init, number)
    for _ in range(WINDOW // LARGEST_DATA):
        assert len((await init.next(Kind.DATA))[2]) == LARGEST_DATA
    await asyncio.sleep(0.02)
    assert init.nothing_came()
    init.say(Kind.CREDIT, FIRST, struct.pack("<I", WINDOW))
    assert await init.next() == (Kind.DATA, FIRST, b"x" * 5)
    assert await init.next() == (Kind.DATA, FIRST, b"")
    await asyncio.sleep(0.02)
    assert init.nothing_came()  # the last five bytes are still on their way
    init.say(Kind.CREDIT, FIRST, struct.pack("<I", 5))
    assert await init.next() == (Kind.HANG_UP, FIRST, b"")


async def test_a_writer_that_runs_ahead_is_held_up_until_the_peer_takes_it(start_fake):
    init, _, sandbox = await start_fake()
    drained = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal drained
        while True:
            writer.write(b"x" * LARGEST_DATA)
            await writer.drain()
            drained += LARGEST_DATA

    _, number = await _listening(init, sandbox, flood)
    await _connected(init, number)
    await asyncio.sleep(0.05)
    before = drained
    assert before <= 2 * WINDOW
    init.say(Kind.CREDIT, FIRST, struct.pack("<I", WINDOW))
    await asyncio.sleep(0.05)
    assert before < drained <= 3 * WINDOW
    init.say(Kind.CLOSE, FIRST)  # the peer is gone, so the flood ends
    await asyncio.sleep(0.05)
    stopped = drained
    await asyncio.sleep(0.05)
    assert drained == stopped


async def test_a_peer_that_goes_is_told_to_the_server(start_fake):
    init, _, sandbox = await start_fake()
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(await reader.read())
        writer.write(b"to nobody")  # goes nowhere, and is no fault

    _, number = await _listening(init, sandbox, listen)
    await _connected(init, number)
    init.say(Kind.OUT, FIRST, b"bye")
    init.say(Kind.CLOSE, FIRST)
    assert await asyncio.wait_for(heard, 30) == b"bye"
    await asyncio.sleep(0.02)
    assert init.nothing_came()


async def test_a_connection_to_a_socket_that_was_just_closed_is_hung_up(start_fake):
    init, _, sandbox = await start_fake()
    served, number = await _listening(init, sandbox, _echo)
    await served.close()
    assert await init.next() == (Kind.HANG_UP, number, b"")
    await _connected(init, number)
    assert await init.next() == (Kind.HANG_UP, FIRST, b"")


async def test_bytes_after_the_end_make_no_sense(start_fake):
    init, _, sandbox = await start_fake()
    _, number = await _listening(init, sandbox, _echo)
    await _connected(init, number)
    init.say(Kind.OUT, FIRST, b"")
    init.say(Kind.OUT, FIRST, b"more")
    assert "does not make sense" in (await sandbox.status()).reason


@pytest.mark.parametrize("words", [{"error": "Address already in use"}, {}])
async def test_a_socket_that_cannot_listen_is_an_error_and_leaves_nothing(start_fake, words):
    init, _, sandbox = await start_fake()
    serving = asyncio.create_task(sandbox.serve(80, _echo))
    _, number, _ = await init.next(Kind.LISTEN)
    init.end(number, **words)
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:80"):
        await serving
    assert not sandbox._listeners


async def test_a_sandbox_that_dies_tells_its_connections(start_fake):
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
    init.hang_up()
    assert str(await asyncio.wait_for(lost, 30)) == "it fell over"
    await served.close()
    with pytest.raises(SandboxUnavailable, match="it fell over"):
        await sandbox.serve(0, _echo)


async def test_a_reset_closes_what_listens_and_says_what_is_in_doubt(start_fake):
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


async def test_after_a_reset_the_network_is_as_it_was_set(start_fake):
    init, keeper, sandbox = await start_fake()
    await sandbox.set_network(NO_NETWORK)
    await _listening(init, sandbox, _echo)
    resetting = asyncio.create_task(sandbox.reset())
    _, asked, _ = await init.next(Kind.RESET)
    assert keeper.network == [NO_NETWORK]
    init.end(asked, done="yes")
    assert await resetting == ""
    assert keeper.network == [NO_NETWORK, NO_NETWORK]  # what was served for it is served again
