"""The egress proxy, with real servers and real connections."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from parts import need
from plimsoll.sandboxes.docker.network.egress_proxy import EgressProxy


@dataclass
class World:
    """A proxy, a server behind it that echoes requests, and the names looked up."""

    proxy: int
    server: int
    egress: EgressProxy
    heads: list[str] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.proxy)

    async def say(self, request: str | bytes, *, end: bool = True) -> str:
        """The proxy's response to some bytes, up to the end of the connection."""
        reader, writer = await self.open()
        writer.write(request.encode("latin-1") if isinstance(request, str) else request)
        if end:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer.decode("latin-1")

    async def get(self, host: str, path: str = "/", *headers: str) -> str:
        lines = [f"GET http://{host}:{self.server}{path} HTTP/1.1", f"Host: {host}", *headers]
        return await self.say("\r\n".join([*lines, "Connection: close", "", ""]))


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    body = b""
    fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n"))}
    if "content-length" in fields:
        body = await reader.readexactly(int(fields["content-length"]))
    elif "transfer-encoding" in fields:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    return head, body


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """All names in `example` are allowed; some resolve to the server, one to a guarded address."""
    names = {
        "files.example": ["127.0.0.1"],
        "also.example": ["127.0.0.1"],
        "rebound.example": ["169.254.169.254"],
        "nowhere.example": [],
    }

    async def resolve(name: str):
        world.looked_up.append(name)
        if name not in names:
            raise OSError(0, "no such name")
        return [ip_address(text) for text in names[name]]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, body = await read_request(reader)
            world.heads.append(head)
            await respond(head, body, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.close()

    egress = EgressProxy(["files.example", "*.example", "127.0.0.0/8"], resolve=resolve)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = await asyncio.start_server(egress, "127.0.0.1", 0)
    world = World(proxy.sockets[0].getsockname()[1], server.sockets[0].getsockname()[1], egress)
    yield world
    proxy.close()
    server.close()


async def respond(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
    path = head.split(" ")[1]
    if path == "/chunked":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    elif path == "/to-the-end":
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nabc")
    elif path == "/interim":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 Done\r\n\r\n")
    elif path == "/switch":
        writer.write(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n")
    elif path == "/nothing":
        pass
    elif path == "/broken":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
    elif path == "/big":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
        for _ in range(1024):
            writer.write(bytes(1 << 16))
            await writer.drain()
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()


async def test_an_allowed_host_is_reached(world):
    answer = await world.get("files.example", "/x?y=1")
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert world.heads[0].startswith("GET /x?y=1 HTTP/1.1\r\nHost: files.example:")


async def test_another_host_is_refused_and_never_resolved(world):
    answer = await world.get("evil.invalid")
    assert answer.startswith("HTTP/1.1 403 Forbidden\r\n")
    assert answer.endswith("plimsoll: evil.invalid is not in the task's allowed_hosts\n")
    assert world.looked_up == world.heads == []


async def test_an_allowed_name_cannot_resolve_to_the_metadata_service(world):
    answer = await world.say("CONNECT rebound.example:80 HTTP/1.1\r\n\r\n")
    assert answer.startswith("HTTP/1.1 403")
    assert "169.254.169.254" in answer


async def test_a_name_without_an_address_is_a_bad_gateway(world):
    for name in ("nowhere.example", "unknown.example"):
        assert (await world.get(name)).startswith("HTTP/1.1 502")


@pytest.mark.parametrize("closed", [1])
async def test_a_closed_port_is_a_bad_gateway(world, closed):
    answer = await world.say(f"CONNECT files.example:{closed} HTTP/1.1\r\n\r\n")
    assert answer.startswith("HTTP/1.1 502")
    assert "cannot be reached" in answer


@pytest.mark.parametrize(
    "path", ["/chunked", "/to-the-end"], ids=["chunked", "up to the end of the connection"]
)
async def test_responses_of_every_framing_are_relayed(world, path):
    assert (await world.get("files.example", path)).endswith("3\r\nabc\r\n0\r\n\r\n")
    old = await world.say(f"GET http://files.example:{world.server}{path} HTTP/1.0\r\n\r\n")
    assert old.endswith("\r\n\r\nabc")


async def test_interim_responses_are_relayed(world):
    answer = await world.get("files.example", "/interim")
    assert answer.startswith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 Done\r\n")


@pytest.mark.parametrize("path", ["/switch", "/nothing"])
async def test_an_invalid_response_is_a_bad_gateway(world, path):
    assert (await world.get("files.example", path)).startswith("HTTP/1.1 502")


async def test_a_truncated_response_does_not_look_complete(world):
    answer = await world.get("files.example", "/broken")
    assert answer.endswith("\r\n\r\nabc")
    assert "Content-Length: 10" in answer


async def test_request_bodies_are_relayed(world):
    url = f"http://files.example:{world.server}/"
    sized = f"POST {url} HTTP/1.1\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert (await world.say(sized)).endswith("\r\n\r\nhello")
    chunks = "5;x=y\r\nhello\r\n3\r\n yo\r\n0\r\nEvil: trailer\r\n\r\n"
    head = f"POST {url} HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert (await world.say(head + chunks)).endswith("\r\n\r\nhello yo")


async def test_each_request_of_a_connection_is_checked(world):
    def get(host: str) -> str:
        return f"GET http://{host}:{world.server}/ HTTP/1.1\r\nHost: x\r\n\r\n"

    answer = await world.say(
        get("files.example") + get("also.example") + get("evil.invalid") + get("files.example")
    )
    assert answer.count("HTTP/1.1 200") == 2
    assert answer.count("HTTP/1.1 403") == 1
    assert len(world.heads) == 2
    assert world.looked_up == ["files.example", "also.example"]


async def test_the_checked_host_is_the_host_header(world):
    await world.get("files.example", "/", "Host: evil.invalid", "host: evil2.invalid")
    assert world.heads[0].lower().count("host:") == 1
    assert "evil" not in world.heads[0]


async def test_proxy_headers_are_not_forwarded(world):
    hop = ("Proxy-Authorization: Basic x", "Connection: x-mine", "X-Mine: 1", "Upgrade: h2c")
    await world.get("files.example", "/", *hop)
    head = world.heads[0].lower()
    for name in ("proxy-authorization", "x-mine", "upgrade", "h2c"):
        assert name not in head
    assert "connection: close" in head


URL = "http://files.example/"


@pytest.mark.parametrize(
    "request_",
    [
        "GET / HTTP/1.1\r\nHost: files.example\r\n\r\n",
        "GET https://files.example/ HTTP/1.1\r\n\r\n",
        "GET ftp://files.example/ HTTP/1.1\r\n\r\n",
        "GET http://files.example@evil.invalid/ HTTP/1.1\r\n\r\n",
        "GET http://evil.invalid:80@files.example/ HTTP/1.1\r\n\r\n",
        "GET http://evil.invalid\\@files.example/ HTTP/1.1\r\n\r\n",
        "GET http://files.example%2eevil.invalid/ HTTP/1.1\r\n\r\n",
        "GET http:///x HTTP/1.1\r\n\r\n",
        f"GET {URL} HTTP/1.1 HTTP/1.1\r\n\r\n",
        f"GET  {URL} HTTP/1.1\r\n\r\n",
        f"GET {URL} HTTP/2.0\r\n\r\n",
        f"GET {URL}\r\n\r\n",
        f"G(T {URL} HTTP/1.1\r\n\r\n",
        f"GET {URL}\x00 HTTP/1.1\r\n\r\n",
        f"GET {URL} HTTP/1.1\nHost: evil.invalid\r\n\r\n",
        f"GET {URL} HTTP/1.1\r\nA: b\rC: d\r\n\r\n",
        f"GET {URL} HTTP/1.1\r\nA: b\nGET http://evil.invalid/ HTTP/1.1\r\n\r\n",
        f"GET {URL} HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        f"GET {URL} HTTP/1.1\r\nA : b\r\n\r\n",
        f"GET {URL} HTTP/1.1\r\nno colon\r\n\r\n",
        f"POST {URL} HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        f"POST {URL} HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\na",
        f"POST {URL} HTTP/1.1\r\nContent-Length: +1\r\n\r\na",
        f"POST {URL} HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"POST {URL} HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
        f"POST {URL} HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        f"POST {URL} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "CONNECT files.example HTTP/1.1\r\n\r\n",
        "CONNECT files.example:443@evil.invalid HTTP/1.1\r\n\r\n",
        "CONNECT files.example:443@evil.invalid:443 HTTP/1.1\r\n\r\n",
        "CONNECT files.example:443:443 HTTP/1.1\r\n\r\n",
        "CONNECT files.example:0 HTTP/1.1\r\n\r\n",
        "CONNECT files.example:65536 HTTP/1.1\r\n\r\n",
        "CONNECT files.example:4_3 HTTP/1.1\r\n\r\n",
        "CONNECT files.example:٤٤٣ HTTP/1.1\r\n\r\n".encode(),
        "CONNECT http://files.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT [::1 HTTP/1.1\r\n\r\n",
        "CONNECT [files.example]:443 HTTP/1.1\r\n\r\n",
        "CONNECT [fe80::1%25eth0]:443 HTTP/1.1\r\n\r\n",
        "CONNECT 0x7f.1:443 HTTP/1.1\r\n\r\n",
        "CONNECT 2130706433:443 HTTP/1.1\r\n\r\n",
        "CONNECT 0177.0.0.1:443 HTTP/1.1\r\n\r\n",
        "CONNECT 127.1:443 HTTP/1.1\r\n\r\n",
        "CONNECT bücher.example:443 HTTP/1.1\r\n\r\n".encode(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\x05\x01\x00",
        "GET",
    ],
)
async def test_ambiguous_requests_are_refused(world, request_):
    answer = await world.say(request_)
    assert answer.startswith("HTTP/1.1 400 Bad Request\r\n"), answer
    assert world.looked_up == world.heads == []


async def test_a_refused_request_ends_its_connection(world):
    good = f"GET http://files.example:{world.server}/ HTTP/1.1\r\n\r\n"
    assert "HTTP/1.1 200" not in await world.say("GET / HTTP/1.1\r\n\r\n" + good)
    assert world.heads == []


async def test_an_invalid_chunk_ends_the_connection(world):
    head = (
        f"POST http://files.example:{world.server}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for chunks in ("5\r\nhelloGET http://evil.invalid/\r\n", "zz\r\n", "-1\r\n", "5\r\nhe"):
        assert (await world.say(head + chunks)).startswith("HTTP/1.1 400")


@pytest.mark.parametrize("asked", ["[::1]", "[::ffff:10.0.0.1]", "10.0.0.1", "[2001:db8::1]"])
async def test_an_address_must_be_listed(world, asked):
    answer = await world.say(f"CONNECT {asked}:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith("HTTP/1.1 403")


@pytest.mark.parametrize("asked", ["127.0.0.1", "[::ffff:127.0.0.1]", "FILES.Example."])
async def test_other_spellings_of_an_allowed_host_are_allowed(world, asked):
    assert (await world.get(asked)).startswith("HTTP/1.1 200")


async def test_an_oversized_head_is_refused(world):
    lines = "".join(f"X-{n}: {'x' * 1000}\r\n" for n in range(100))
    answer = await world.say(f"GET {URL} HTTP/1.1\r\n{lines}\r\n")
    assert answer.startswith("HTTP/1.1 431")
    assert (await world.say("G" * 200_000, end=False)).startswith("HTTP/1.1 431")
    just = f"X: {'x' * 60_000}"
    assert (await world.get("files.example", "/", just)).startswith("HTTP/1.1 200")


async def test_a_client_that_writes_byte_by_byte_is_served(world):
    reader, writer = await world.open()
    request = f"GET http://files.example:{world.server}/ HTTP/1.1\r\nConnection: close\r\n\r\n"
    for char in request:
        writer.write(char.encode())
        await writer.drain()
        await asyncio.sleep(0)
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_an_unfinished_request_times_out(world, monkeypatch):
    monkeypatch.setattr("plimsoll.sandboxes.docker.network.egress_proxy._HEAD_SECONDS", 0.1)
    assert (await world.say("GET ", end=False)).startswith("HTTP/1.1 408")
    assert await world.say("", end=False) == ""


async def test_a_client_that_does_not_read_blocks_nothing_and_uses_no_memory(world):
    reader, writer = await world.open()
    writer.transport.pause_reading()
    writer.write(f"GET http://files.example:{world.server}/big HTTP/1.1\r\n\r\n".encode())
    await asyncio.sleep(0.3)
    assert (await world.get("files.example")).startswith("HTTP/1.1 200")
    writer.transport.resume_reading()
    await reader.readuntil(b"\r\n\r\n")
    assert len(await reader.readexactly(64 << 20)) == 64 << 20
    writer.close()


async def test_connections_beyond_the_limit_get_an_error(world, monkeypatch):
    monkeypatch.setattr("plimsoll.sandboxes.docker.network.egress_proxy._MAX_CONNECTIONS", 3)
    opened = [await world.open() for _ in range(3)]
    await asyncio.sleep(0.05)
    assert (await world.get("files.example")).startswith("HTTP/1.1 503")
    for _, writer in opened:
        writer.close()
    async with asyncio.timeout(30):  # the close takes a moment
        while not (await world.get("files.example")).startswith("HTTP/1.1 200"):
            pass


async def test_a_tunnel_relays_both_ways_with_half_closes(world):
    async def reverse(reader, writer):
        writer.write((await reader.read())[::-1])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(reverse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await world.open()
    # The first bytes of the tunnel arrive with the request.
    writer.write(f"CONNECT files.example:{port} HTTP/1.1\r\n\r\nfirst".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    data = bytes(range(256)) * 40_000
    writer.write(data)
    writer.write_eof()
    assert await reader.read() == (b"first" + data)[::-1]
    writer.close()
    server.close()


async def test_a_cancelled_connection_is_closed(world):
    tasks: list[asyncio.Task[None]] = []

    async def tracked(reader, writer):
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(asyncio.CancelledError):
            await world.egress(reader, writer)

    async def wait(reader, writer):
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(wait, "127.0.0.1", 0)
    proxy = await asyncio.start_server(tracked, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection(*proxy.sockets[0].getsockname())
    writer.write(f"CONNECT files.example:{port} HTTP/1.1\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    tasks[0].cancel()
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
    proxy.close()
    silent.close()


def certificate(folder: Path) -> Path:
    both = folder / "both.pem"
    words = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-subj /CN=files.example -addext subjectAltName=DNS:files.example"
    )
    argv = [*words.split(), "-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    made = subprocess.run(argv, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


async def test_tls_works_end_to_end_through_a_tunnel(world, tmp_path):
    try:
        file = certificate(tmp_path)
    except FileNotFoundError:
        need("openssl", "openssl is not installed")
        return
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_verify_locations(tmp_path / "cert.pem")
    theirs.load_cert_chain(file)

    async def hello(reader, writer):
        writer.write(b"hello " + await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0, ssl=theirs)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await world.open()
    writer.write(f"CONNECT files.example:{port} HTTP/1.1\r\nHost: evil.invalid\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await writer.start_tls(ours, server_hostname="files.example")
    writer.write(b"you\n")
    assert await reader.read() == b"hello you\n"
    writer.close()
    server.close()
