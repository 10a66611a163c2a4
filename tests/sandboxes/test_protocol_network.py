"""The network is what the policy says, from the next command on."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from parts import spec
from plimsoll.core.errors import SandboxUnsupported
from plimsoll.core.network import NO_NETWORK, PUBLIC, NetworkMode, NetworkPolicy
from plimsoll.sandboxes.protocol import Backend, Image, Sandbox

INTERFACES = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server on the host's loopback."""

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


def _connect(port: int) -> list[str]:
    code = f"import socket; print(socket.create_connection(('127.0.0.1', {port}), 3).recv(9))"
    return ["python3", "-c", code]


async def test_without_a_network_there_is_only_loopback(sandbox: Sandbox):
    assert (await sandbox.exec(INTERFACES)).stdout.text == "lo\n"


async def test_the_sandboxs_own_loopback_works_and_is_its_own(
    backend: Backend, image: Image, sandbox: Sandbox
):
    serve = "python3 -m http.server 8080 --bind 127.0.0.1 >/tmp/log 2>&1 &"
    wait = "until grep -q :1F90 /proc/net/tcp; do sleep 0.05; done"
    other = await backend.create(image, spec())
    try:
        for one in (sandbox, other):  # both listen on the same port
            await one.exec(serve)
            assert (await one.exec(wait, timeout=10)).ok
    finally:
        await other.close()


async def test_without_a_network_the_hosts_servers_are_not_reached(sandbox: Sandbox, port: int):
    assert not (await sandbox.exec(_connect(port), timeout=10)).ok


async def test_a_policy_applies_from_the_next_command_on(sandbox: Sandbox, port: int):
    await sandbox.set_network(PUBLIC)
    assert "hello" in (await sandbox.exec(_connect(port), timeout=10)).stdout.text
    await sandbox.set_network(NO_NETWORK)
    assert not (await sandbox.exec(_connect(port), timeout=10)).ok
    assert (await sandbox.exec(INTERFACES)).stdout.text == "lo\n"


async def test_a_sandbox_may_start_with_a_network(backend: Backend, image: Image, port: int):
    made = await backend.create(image, spec(network=PUBLIC))
    try:
        assert "hello" in (await made.exec(_connect(port), timeout=10)).stdout.text
    finally:
        await made.close()


async def test_without_a_network_the_hosts_abstract_sockets_are_not_reached(sandbox: Sandbox):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0plimsoll-test-abstract")
        server.listen()
        code = "import socket; socket.socket(socket.AF_UNIX).connect('\\0plimsoll-test-abstract')"
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
        assert done.stdout.text == "['lo']\n", done.stderr.text


async def test_a_policy_that_cannot_be_enforced_is_refused(
    backend: Backend, image: Image, sandbox: Sandbox
):
    listed = NetworkPolicy(NetworkMode.ALLOWLIST, ("index.example.org",))
    with pytest.raises(SandboxUnsupported, match="allowlist"):
        await backend.create(image, spec(network=listed))
    with pytest.raises(SandboxUnsupported, match="allowlist"):
        await sandbox.set_network(listed)
    assert (await sandbox.exec(INTERFACES)).stdout.text == "lo\n"


async def test_a_public_command_cannot_listen_to_the_hosts_traffic(sandbox: Sandbox):
    await sandbox.set_network(PUBLIC)
    code = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))"
    done = await sandbox.exec(["python3", "-c", code])
    assert not done.ok
    assert "PermissionError" in done.stderr.text
