"""Network policies: they apply from the next command on."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from parts import spec
from plimsoll.core.errors import SandboxUnsupported
from plimsoll.core.permissions import (
    NO_NETWORK,
    PUBLIC,
    NetworkMode,
    NetworkPolicy,
)
from plimsoll.sandboxes.protocol import Backend, Image, Sandbox

pytestmark = pytest.mark.every_backend

INTERFACES = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort"


def _address() -> str:
    """An address of the host that is not loopback: a container has a loopback of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        with suppress(OSError):
            end.connect(("192.0.2.1", 9))  # nothing is sent
        return end.getsockname()[0]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server on every address of the host."""

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "0.0.0.0", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


def _connect(port: int, seconds: int = 3) -> list[str]:
    address = (_address(), port)
    code = f"import socket; print(socket.create_connection({address}, {seconds}).recv(9))"
    return ["python3", "-c", code]


async def test_without_a_network_there_is_only_loopback(sandbox: Sandbox):
    assert (await sandbox.exec(INTERFACES)).stdout.text == "lo\n"


async def test_a_sandbox_has_a_private_loopback(backend: Backend, image: Image, sandbox: Sandbox):
    serve = "python3 -m http.server 8080 --bind 127.0.0.1 >/tmp/log 2>&1 &"
    wait = "until grep -q :1F90 /proc/net/tcp; do sleep 0.05; done"
    other = await backend.create(image, spec())
    try:
        for one in (sandbox, other):  # both listen on the same port
            await one.exec(serve)
            assert (await one.exec(wait, timeout=60)).ok
    finally:
        await other.close()


async def test_without_a_network_the_hosts_servers_are_not_reached(sandbox: Sandbox, port: int):
    assert not (await sandbox.exec(_connect(port), timeout=60)).ok


async def test_a_policy_applies_from_the_next_command_on(sandbox: Sandbox, port: int):
    await sandbox.set_network(PUBLIC)
    assert "hello" in (await sandbox.exec(_connect(port, 30), timeout=60)).stdout.text
    await sandbox.set_network(NO_NETWORK)
    assert not (await sandbox.exec(_connect(port), timeout=60)).ok
    assert (await sandbox.exec(INTERFACES)).stdout.text == "lo\n"


async def test_a_sandbox_can_start_with_a_network(backend: Backend, image: Image, port: int):
    made = await backend.create(image, spec(network=PUBLIC))
    try:
        assert "hello" in (await made.exec(_connect(port, 30), timeout=60)).stdout.text
    finally:
        await made.close()


async def test_without_a_network_the_hosts_abstract_sockets_are_not_reached(sandbox: Sandbox):
    name = f"plimsoll-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        done = await sandbox.exec(["python3", "-c", code])
    assert not done.ok
    assert "refused" in done.stderr.text


async def test_a_command_cannot_move_itself_to_the_hosts_network(sandbox: Sandbox):
    escape = (
        "import ctypes, os, sys\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "for pid in [p for p in os.listdir('/proc') if p.isdigit()]:\n"
        "    try: fd = os.open(f'/proc/{pid}/ns/net', 0)\n"
        "    except OSError: continue\n"
        "    c.setns(fd, 0)\n"
        "for fd in range(3, 64): c.setns(fd, 0)\n"
    )
    interfaces = "print([x.split(':')[0].strip() for x in open('/proc/net/dev') if ':' in x])"
    for prefix in ([], ["unshare", "-Ur"]):
        done = await sandbox.exec([*prefix, "python3", "-c", escape + interfaces])
        refused = prefix and "unshare failed" in done.stderr.text
        assert refused or done.stdout.text == "['lo']\n", done.stderr.text


async def test_an_allowlist_is_enforced_or_refused(
    backend: Backend, image: Image, sandbox: Sandbox, port: int
):
    listed = NetworkPolicy(NetworkMode.ALLOWLIST, ("index.example.org",))
    try:
        made = await backend.create(image, spec(network=listed))
    except SandboxUnsupported as error:
        assert "allowlist" in str(error)
        with pytest.raises(SandboxUnsupported, match="allowlist"):
            await sandbox.set_network(listed)
    else:
        try:
            await _check_closed(made, port)
        finally:
            await made.close()
        await sandbox.set_network(listed)
    await _check_closed(sandbox, port)


async def _check_closed(sandbox: Sandbox, port: int) -> None:
    assert (await sandbox.exec(INTERFACES)).stdout.text == "lo\n"
    assert not (await sandbox.exec(_connect(port), timeout=60)).ok


async def test_a_public_command_cannot_listen_to_the_hosts_traffic(sandbox: Sandbox):
    await sandbox.set_network(PUBLIC)
    code = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))"
    done = await sandbox.exec(["python3", "-c", code])
    assert not done.ok
    assert "PermissionError" in done.stderr.text
