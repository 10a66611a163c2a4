"""Connections made in a sandbox, forwarded to the host by its init."""

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from init_client import (
    CLOSE,
    CLOSED,
    CONNECT,
    CREDIT,
    CREDITED,
    DATA,
    KILL_ALL,
    LISTEN,
    OUT,
    STATUS,
    Init,
    fields,
    parse_fields,
    started,
)

WINDOW = 262_144


@pytest.fixture
def init(tmp_path: Path) -> Iterator[Init]:
    # It shares this machine's loopback, so that the test can connect to the sandbox.
    with started(tmp_path) as running:
        yield running


@pytest.fixture
def listening(init: Init) -> tuple[int, int]:
    """The number of a listening request, and its port."""
    number = init.ask(LISTEN, fields("127.0.0.1", "0"))
    return number, int(init.until_end(number).words["port"])


def _connected(init: Init, listening: tuple[int, int]) -> tuple[socket.socket, int]:
    peer = socket.create_connection(("127.0.0.1", listening[1]), 5)
    kind, number, payload = init.frame()
    assert kind == CONNECT
    assert number >= 1 << 31
    assert parse_fields(payload) == [str(listening[0])]
    return peer, number


def _take(init: Init, number: int, size: int) -> bytes:
    """Read bytes of a tunnel without giving credit."""
    found = b""
    while len(found) < size:
        kind, seen, payload = init.frame()
        assert (kind, seen) == (OUT, number)
        found += payload
    return found


def test_data_flows_both_ways_with_half_closes(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    with peer:
        peer.sendall(b"question")
        assert _take(init, number, 8) == b"question"
        peer.shutdown(socket.SHUT_WR)
        assert init.frame() == (OUT, number, b"")  # the peer half-closed and still reads
        init.send(DATA, number, b"answer")
        assert init.frame() == (CREDITED, number, struct.pack("<I", 6))
        init.send(DATA, number)
        assert init.frame() == (CLOSED, number, b"")
        assert peer.recv(100) == b"answer"
        assert peer.recv(100) == b""


def test_the_hosts_half_close_reaches_the_peer(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    with peer:
        init.send(DATA, number)
        assert peer.recv(1) == b""
        peer.sendall(b"more")
        assert _take(init, number, 4) == b"more"
    assert init.frame() == (OUT, number, b"")
    assert init.frame() == (CLOSED, number, b"")


def test_data_to_the_host_respects_the_credit(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    with peer:
        peer.setblocking(False)
        sent = 0
        while select.select([], [peer], [], 0.5)[1]:
            sent += peer.send(b"x" * 65_536)
        assert sent > WINDOW
        assert len(_take(init, number, WINDOW)) == WINDOW
        assert init.silent()
        init.send(CREDIT, number, struct.pack("<I", 1000))
        assert len(_take(init, number, 1000)) == 1000
        assert init.silent()


def test_data_unread_by_the_peer_is_not_acknowledged(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    with peer:
        credit, sent, silent = 0, 0, False
        while not silent:  # within the credit, until the sockets are full
            while sent - credit <= WINDOW - 65_536:
                init.send(DATA, number, b"x" * 65_536)
                sent += 65_536
            try:
                kind, _, payload = init.frame(0.5)
            except TimeoutError:
                silent = True
            else:
                assert kind == CREDITED
                credit += struct.unpack("<I", payload)[0]
        assert sent - credit > WINDOW - 65_536
        init.send(DATA, number)
        got = 0
        while chunk := peer.recv(1 << 20):
            got += len(chunk)
        assert got == sent


def test_data_beyond_the_credit_ends_only_its_tunnel(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    other, kept = _connected(init, listening)
    with peer, other:
        for _ in range(200):
            init.send(DATA, number, b"x" * 65_536)
        kind = CREDITED
        while kind == CREDITED:
            kind, seen, _ = init.frame()
        assert (kind, seen) == (CLOSED, number)
        init.send(DATA, kept, b"on")
        assert other.recv(10) == b"on"


def test_a_reset_connection_is_closed(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    assert init.frame() == (CLOSED, number, b"")
    init.send(DATA, number, b"late")
    init.send(CLOSE, number)
    assert init.silent()


def test_sent_data_arrives_after_the_host_closes(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    with peer:
        peer.sendall(b"a request that is never read" * 1000)
        time.sleep(0.1)
        sent = os.urandom(200_000)
        for at in range(0, len(sent), 50_000):
            init.send(DATA, number, sent[at : at + 50_000])
        init.send(CLOSE, number)
        time.sleep(0.2)
        got = b""
        while chunk := peer.recv(1 << 20):
            got += chunk
        assert got == sent
    deadline = time.monotonic() + 30
    while _sockets(init) > 1:  # the listening one
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _sockets(init: Init) -> int:
    found = 0
    for one in Path(f"/proc/{init.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(one.readlink()).startswith("socket:")
    return found


def test_fifty_concurrent_connections_do_not_mix(init: Init, listening: tuple[int, int]):
    peers = [_connected(init, listening) for _ in range(50)]
    for n, (peer, _) in enumerate(peers):
        peer.sendall(f"peer {n}".encode())
    seen: dict[int, bytes] = {}
    while len(seen) < 50:
        kind, number, payload = init.frame()
        assert kind == OUT
        seen[number] = payload
    for n, (peer, number) in enumerate(peers):
        assert seen[number] == f"peer {n}".encode()
        init.send(DATA, number, seen[number])
        assert peer.recv(100) == seen[number]
        peer.close()


def test_a_closed_listener_refuses_connections(init: Init, listening: tuple[int, int]):
    peer, number = _connected(init, listening)
    init.send(CLOSE, listening[0])
    init.request(STATUS)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listening[1]), 5)
    with peer:
        peer.sendall(b"on")  # open connections stay
        assert _take(init, number, 2) == b"on"


def test_an_unavailable_port_reports_the_reason(init: Init, listening: tuple[int, int]):
    error = init.request(LISTEN, "127.0.0.1", str(listening[1]))["error"]
    assert error == f"127.0.0.1:{listening[1]}: Address in use"
    assert "error" in init.request(LISTEN, "nonsense", "0")
    assert "error" in init.request(LISTEN, "127.0.0.1", "99999")
    assert "error" in init.request(LISTEN)


def test_connections_beyond_half_of_the_descriptors_wait(tmp_path: Path):
    with started(tmp_path, wrap="prlimit --nofile=40:40") as init:
        number = init.ask(LISTEN, fields("127.0.0.1", "0"))
        port = int(init.until_end(number).words["port"])
        peers = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(50)]
        seen = 0
        while numbers := [number for kind, number, _ in _until_silent(init) if kind == CONNECT]:
            assert len(numbers) <= 20
            assert init.said("echo on") == "on\n"
            for peer in peers[seen : seen + len(numbers)]:
                peer.close()
            for one in numbers:
                init.send(CLOSE, one)
            seen += len(numbers)
        assert seen == 50


def test_running_out_of_descriptors_fails_a_command_but_not_init(tmp_path: Path):
    with started(tmp_path, wrap="prlimit --nofile=24:24") as init:
        numbers = [init.begin("sleep", "60") for _ in range(10)]
        failed = init.until_end(numbers[-1])
        assert "descriptors" in failed.words["error"]
        assert init.request(KILL_ALL) == {"done": "1"}
        assert init.said("echo on") == "on\n"


def _until_silent(init: Init) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    try:
        while True:
            found.append(init.frame(0.5))
    except TimeoutError:
        return found
