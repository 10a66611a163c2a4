"""Agents in a sandbox without a network reach the gateway through relayed connections."""

import asyncio
import contextlib
import json

import pytest
from gateway_parts import ServedSession, Stepped, asked, done, say, serving

from plimsoll.gateway import gateway as gateway_module
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.http import idle_connections
from plimsoll.gateway.http import server as server_module
from plimsoll.sandboxes import connections
from plimsoll.sandboxes.protocol import Sandbox
from plimsoll.testing.waiting import until

ASK = """
import json, sys, urllib.request
root, key, stream = sys.argv[1:4]
body = {"model": "m", "stream": stream == "yes", "messages": [{"role": "user", "content": "hello"}]}
request = urllib.request.Request(root + "/v1/chat/completions", json.dumps(body).encode())
request.add_header("Authorization", "Bearer " + key)
with urllib.request.urlopen(request, timeout=60) as reply:
    print(reply.status, reply.read().decode())
"""


@pytest.mark.parametrize("stream", ["no", "yes"])
async def test_a_command_without_a_network_is_answered(
    served: ServedSession, stepped: Stepped, sandbox: Sandbox, stream: str
):
    tunnel = await sandbox.serve(0, served.gateway.connect)
    access = served.session.access(tunnel.port)
    running = asyncio.create_task(
        sandbox.exec(["python3", "-c", ASK, access.root, access.key, stream], timeout=30)
    )
    done(await _called(stepped), "as ", "ever")
    ran = await running
    assert ran.ok, ran.complaint()
    assert ran.stdout.text.startswith("200 ")
    assert "as " in ran.stdout.text and "ever" in ran.stdout.text
    assert served.session.exchanges == 1
    await tunnel.close()


async def _called(stepped: Stepped):
    await until(lambda: stepped.calls, 30)
    return stepped.calls[0]


async def test_a_command_that_dies_cancels_its_request(
    served: ServedSession, stepped: Stepped, sandbox: Sandbox
):
    tunnel = await sandbox.serve(0, served.gateway.connect)
    access = served.session.access(tunnel.port)
    command = ["python3", "-c", ASK, access.root, access.key, "yes"]
    running = asyncio.create_task(sandbox.exec(command, timeout=30))
    step = await _called(stepped)
    await sandbox.kill_all()
    await until(lambda: step.cancelled)
    await running
    await tunnel.close()
    assert [trouble.what for trouble in (await served.read()).troubles] == ["cancelled"]


class RelayingSocket:
    """A listening socket whose connections are relayed, as a sandbox would."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.over = 0
        self.readers: list[asyncio.StreamReader] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.readers.append(reader)
        try:
            await self._gateway.connect(reader, writer)
        finally:
            self.over += 1
            writer.close()

    async def __aenter__(self) -> "RelayingSocket":
        self._server = await asyncio.start_server(self, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_) -> None:
        self._server.close()


def _post(served: ServedSession, **more) -> bytes:
    body = json.dumps(asked("/v1/chat/completions", **more)).encode()
    path = served.access.root.partition("//")[2].partition("/")[2]
    head = (
        f"POST /{path}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {served.access.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def test_a_relay_passes_a_disconnect_on(served: ServedSession, stepped: Stepped):
    async with RelayingSocket(served.gateway) as relaying:
        _, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
        writer.write(_post(served, stream=True))
        step = await stepped.call()
        writer.transport.abort()
        await until(lambda: step.cancelled)
        await until(lambda: relaying.over == 1)


@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError, OSError])
async def test_a_lost_connection_of_a_relay_cancels_its_request(
    served: ServedSession, stepped: Stepped, monkeypatch, error: type[OSError]
):
    monkeypatch.setattr(gateway_module, "PING_SECONDS", 3600.0)  # no ping notices it
    async with RelayingSocket(served.gateway) as relaying:
        _, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
        writer.write(_post(served, stream=True))
        step = await stepped.call()
        relaying.readers[0].set_exception(error())
        await until(lambda: step.cancelled)
        await until(lambda: relaying.over == 1)
        writer.transport.abort()


async def test_a_relay_applies_backpressure(served: ServedSession, stepped: Stepped):
    async with RelayingSocket(served.gateway) as relaying:
        reader, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
        writer.write(_post(served, stream=True))
        reader._transport.pause_reading()
        step = await stepped.call()
        for _ in range(400):
            say(step, "x" * 65536)
        await asyncio.sleep(0.5)
        assert step.queue.qsize() > 100
        reader._transport.resume_reading()
        done(step)
        seen = 0
        async with asyncio.timeout(60):
            while step.queue.qsize() or not step.over:
                seen += len(await reader.read(1 << 20))
        assert seen > 100 * 65536
        writer.transport.abort()
        await until(lambda: relaying.over == 1)


async def test_several_requests_use_one_connection(served: ServedSession, stepped: Stepped):
    async with RelayingSocket(served.gateway) as relaying:
        reader, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
        for number in range(3):
            writer.write(_post(served, number=number))
            done(await stepped.call(number), f"answer {number}")
            seen = b""
            while f"answer {number}".encode() not in seen:
                seen += await reader.read(65536)
        writer.close()
        await until(lambda: relaying.over == 1)


@pytest.mark.parametrize("sent", [b"", b"POST /s/x/v1/messages HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_without_a_request_is_closed(
    stepped, tmp_path, monkeypatch, sent: bytes
):
    monkeypatch.setattr(idle_connections, "FIRST_REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(gateway_module, "MAINTENANCE_SECONDS", 0.05)
    async with serving(stepped, tmp_path) as served, RelayingSocket(served.gateway) as relaying:
        for port in (relaying.port, served.gateway.port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            with contextlib.suppress(ConnectionError):  # a reset, if not everything was read
                assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        await until(lambda: relaying.over == 1)
        # A connection that has sent a request is not closed, however long its answer takes.
        monkeypatch.setattr(idle_connections, "FIRST_REQUEST_SECONDS", 60.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
        writer.write(_post(served))
        step = await stepped.call()
        await until(lambda: not served.gateway._server._idle)
        monkeypatch.setattr(idle_connections, "FIRST_REQUEST_SECONDS", 0.3)
        await asyncio.sleep(0.6)
        done(step, "at last")
        assert b"at last" in await asyncio.wait_for(reader.readuntil(b"at last"), 30)
        writer.transport.abort()


@pytest.mark.parametrize("more", [b"", b"POST /s/x/v1/messages HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_that_falls_silent_after_a_request_is_closed(
    stepped: Stepped, tmp_path, monkeypatch, more: bytes
):
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.3)
    async with serving(stepped, tmp_path) as served, RelayingSocket(served.gateway) as relaying:
        for number, port in enumerate((relaying.port, served.gateway.port)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_post(served, number=number))
            done(await stepped.call(number), f"answer {number}")
            await reader.readuntil(f"answer {number}".encode())
            writer.write(more)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 30)
            writer.close()
        await until(lambda: relaying.over == 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_whose_answer_takes_long_is_not_idle(
    stepped: Stepped, tmp_path, monkeypatch, stream: bool
):
    """The idle timeout that began with the previous answer expires meanwhile."""
    idle = 1.0
    monkeypatch.setattr(server_module, "IDLE_SECONDS", idle)
    async with serving(stepped, tmp_path) as served, RelayingSocket(served.gateway) as relaying:
        reader, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
        for number in range(2):
            writer.write(_post(served, number=number, stream=stream))
            step = await stepped.call(number)
            if stream:
                say(step, "begun")
                await reader.readuntil(b"begun")
            if number:
                await asyncio.sleep(1.5 * idle)
            done(step, f"answer {number}")
            await reader.readuntil(f"answer {number}".encode())
            await reader.readuntil(b"[DONE]" if stream else b"}")
        writer.transport.abort()


async def test_closed_connections_are_forgotten(stepped, tmp_path, monkeypatch):
    monkeypatch.setattr(idle_connections, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(gateway_module, "MAINTENANCE_SECONDS", 0.05)
    async with serving(stepped, tmp_path) as served:
        port, known = served.gateway.port, served.gateway._server._idle
        made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await until(lambda: len(known) == 20)
        for _, writer in made:
            writer.transport.abort()
        await until(lambda: not known)


async def test_a_relay_limits_its_connections(served: ServedSession, monkeypatch, caplog):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    relaying = connections.Connections(served.gateway.connect)
    server = await asyncio.start_server(relaying.start, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    await until(lambda: len(relaying._tasks) == 3)
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
    assert sum("3 open connections" in each.message for each in caplog.records) == 1
    held[0][1].transport.abort()
    await until(lambda: len(relaying._tasks) == 2)
    held.append(await asyncio.open_connection("127.0.0.1", port))
    await until(lambda: len(relaying._tasks) == 3)
    server.close()
    await relaying.close()
    for _, writer in held:
        writer.close()


async def test_closing_the_gateway_ends_its_relays(stepped: Stepped):
    async with Gateway(stepped) as gateway:
        relaying = await RelayingSocket(gateway).__aenter__()
        reader, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
        await asyncio.sleep(0.05)
    assert await asyncio.wait_for(reader.read(), 30) == b""
    await until(lambda: relaying.over == 1)
    writer.close()
    again, writer = await asyncio.open_connection("127.0.0.1", relaying.port)
    assert await asyncio.wait_for(again.read(), 30) == b""
    writer.close()
    await relaying.__aexit__()
