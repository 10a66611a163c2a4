"""Calls to a real daemon: their results, and the messages of their errors."""

import asyncio
import io
import signal
import socket
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import aiodocker.ssh
import pytest

from docker_calls import exit_code, kill
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.docker.daemon import api as daemon_module
from plimsoll.sandboxes.docker.daemon import client
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.client import SshConnector
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint, find_endpoint
from plimsoll.sandboxes.docker.daemon.errors import DaemonError, DaemonUnreachable, response_error
from plimsoll.sandboxes.docker.labels import from_docker, to_docker
from plimsoll.sandboxes.host.owners import this_process

LABELS = to_docker(Labels("daemon-test", "1", this_process(), time.time() + 600))


def config(*command: str) -> dict[str, object]:
    streams = ("OpenStdin", "StdinOnce", "AttachStdin", "AttachStdout", "AttachStderr")
    return {
        "Image": "debian:12",
        "Entrypoint": list(command),
        "Labels": LABELS,
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
        **dict.fromkeys(streams, True),
    }


@pytest.fixture
async def container(daemon: Daemon) -> AsyncIterator[str]:
    """A container that echoes its input; not yet started."""
    made = await daemon.create_container(config("cat"), f"plimsoll-test-{short_id()}")
    yield made
    await daemon.remove(made)


async def test_a_container_echoes_over_an_attached_stream_and_is_removed(
    daemon: Daemon, container: str
):
    stream = await daemon.attach(container)
    await daemon.start(container)
    await stream.write(b"hello")
    assert await stream.read() == (1, b"hello")
    seen = await daemon.inspect(container)
    assert seen is not None
    assert seen.state.running
    assert from_docker(seen.config.labels) == from_docker(LABELS)
    assert container in [row.id for row in await daemon.containers("plimsoll.run=daemon-test")]
    await kill(daemon, container)
    assert await stream.read() is None
    assert await exit_code(daemon, container, 10) == 137
    with pytest.raises(SandboxUnavailable, match="has ended"):
        for _ in range(100):  # the first writes may still succeed
            await stream.write(b"more")
            await asyncio.sleep(0.01)
    await stream.close()
    assert await daemon.remove(container) is True
    assert await daemon.remove(container) is False
    assert await daemon.inspect(container) is None


async def test_stdout_and_stderr_are_separate_and_large_output_is_complete(daemon: Daemon):
    script = "head -c 3000000 /dev/zero; echo oops >&2"
    made = await daemon.create_container(config("sh", "-c", script), f"plimsoll-test-{short_id()}")
    stream = await daemon.attach(made)
    await daemon.start(made)
    sizes = {1: 0, 2: 0}
    while (piece := await stream.read()) is not None:
        sizes[piece[0]] += len(piece[1])
    await stream.close()
    await daemon.remove(made)
    assert sizes == {1: 3_000_000, 2: 5}


async def test_closing_the_attached_stream_ends_the_process_that_reads_it(
    daemon: Daemon, container: str
):
    stream = await daemon.attach(container)
    await daemon.start(container)
    await stream.close()
    assert await exit_code(daemon, container, 10) == 0


async def test_files_are_copied_to_and_from_a_container_that_never_ran(
    daemon: Daemon, container: str
):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writing:
        info = tarfile.TarInfo("a.txt")
        info.size = 2
        writing.addfile(info, io.BytesIO(b"hi"))
    await daemon.put_archive(container, "/tmp", tar.getvalue())
    async with daemon.get_archive(container, "/tmp/a.txt") as pieces:
        got = b"".join([piece async for piece in pieces])
    with tarfile.open(fileobj=io.BytesIO(got)) as reading:
        file = reading.extractfile("a.txt")
        assert file is not None
        assert file.read() == b"hi"
    folder = await daemon.stat_archive(container, "/tmp")
    link = await daemon.stat_archive(container, "/bin")
    assert folder is not None and folder.is_folder and not folder.is_link
    assert link is not None and link.is_link
    assert await daemon.stat_archive(container, "/nothing/here") is None


async def test_an_image_is_imported_tagged_and_removed(daemon: Daemon):
    name = f"plimsoll/test:{short_id()}"
    tar = io.BytesIO()
    tarfile.open(fileobj=tar, mode="w").close()
    labels = {**LABELS, "odd": 'quotes " and $dollars and \\'}
    made = await daemon.import_image(tar.getvalue(), name, labels)
    found = await daemon.image(name)
    assert found is not None
    assert found.id == made
    assert found.labels == labels
    assert name in [tag for row in await daemon.images("odd") for tag in row.repo_tags or []]
    assert await daemon.remove_image(name) is True
    assert await daemon.remove_image(name) is False
    assert await daemon.image(name) is None


async def test_networks_and_volumes_are_created_listed_and_removed(daemon: Daemon, container: str):
    name = f"plimsoll-test-{short_id()}"
    network = await daemon.create_network(name, LABELS, internal=True)
    await daemon.disconnect("none", container)
    await daemon.connect(name, container)
    await daemon.start(container)
    seen = await daemon.network(name)
    assert seen is not None
    assert seen.internal
    assert set(seen.containers or {}) == {container}
    await daemon.disconnect(name, container)
    assert network in [row.id for row in await daemon.networks("plimsoll.run=daemon-test")]
    assert await daemon.remove_network(name) is True
    assert await daemon.remove_network(name) is False
    await daemon.create_volume(name, LABELS)
    assert name in [volume.name for volume in await daemon.volumes("plimsoll.run=daemon-test")]
    assert await daemon.remove_volume(name) is True
    assert await daemon.volume(name) is None


async def test_a_refused_call_is_an_error_with_the_daemons_message(daemon: Daemon, container: str):
    with pytest.raises(DaemonError, match="cannot create a container: No such image") as caught:
        await daemon.create_container({"Image": "no-such-image:1"}, f"x{short_id()}")
    assert caught.value.status == 404
    with pytest.raises(DaemonError) as caught:
        await kill(daemon, container)
    assert caught.value.status == 409
    with pytest.raises(DaemonError, match="attach to a container: No such container"):
        await daemon.attach("nosuchcontainer")


def test_a_full_disk_names_the_daemon():
    message = b'{"message": "write /x/layer.tar: no space left on device"}'
    error = response_error("tcp://far:2376", 500, message, "create a container")
    assert isinstance(error, SandboxUnavailable)
    assert "the disk of the Docker daemon at tcp://far:2376 is full" in str(error)


async def test_a_daemon_behind_tls_works_the_same(tls_daemon):
    endpoint = find_endpoint(tls_daemon.url, None, {}, certificates=tls_daemon.certificates)
    async with Daemon(endpoint) as daemon:
        made = await daemon.create_container(config("cat"), f"plimsoll-test-{short_id()}")
        stream = await daemon.attach(made)
        await daemon.start(made)
        await stream.write(b"hello" * 100_000)
        got = 0
        while got < 500_000 and (piece := await stream.read()):
            got += len(piece[1])
        await stream.close()
        await daemon.remove(made)
    assert got == 500_000


async def test_a_daemon_with_an_untrusted_certificate_is_refused(tls_daemon, tmp_path: Path):
    for name in ("cert.pem", "key.pem"):  # without its ca.pem: the system's authorities
        (tmp_path / name).write_bytes((tls_daemon.certificates / name).read_bytes())
    endpoint = find_endpoint(tls_daemon.url, None, {}, certificates=tmp_path)
    with pytest.raises(SandboxUnavailable, match="untrusted certificate"):
        async with Daemon(endpoint):
            pass


async def test_a_daemon_that_requires_a_client_certificate_refuses_calls_without_one(
    tls_daemon, tmp_path: Path
):
    (tmp_path / "ca.pem").write_bytes((tls_daemon.certificates / "ca.pem").read_bytes())
    endpoint = find_endpoint(tls_daemon.url, None, {}, certificates=tmp_path)
    with pytest.raises(SandboxUnavailable):
        async with Daemon(endpoint):
            pass


@contextmanager
def fake_server(path: Path, answer: bytes) -> Iterator[Endpoint]:
    """A server on a unix socket that is no daemon and sends one fixed response."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                if answer:
                    connection.sendall(answer)
                else:
                    time.sleep(3)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Endpoint(f"unix://{path}")
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "is not a Docker daemon"),
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"ApiVersion":"abc"}',
            "invalid response.*'abc'",
        ),
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"ApiVersion":"1"}',
            "invalid response.*'1'",
        ),
        (b"SSH-2.0-x\r\n", "closed the connection"),
        (b"", "hangs: no response within 1 s"),
    ],
)
async def test_a_server_that_is_no_daemon_or_hangs_is_one_clear_error(
    tmp_path: Path, answer: bytes, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client, "CONNECT_SECONDS", 30.0 if answer else 1.0)
    with (
        fake_server(tmp_path / "sock", answer) as endpoint,
        pytest.raises(SandboxUnavailable, match=message),
    ):
        await Daemon(endpoint).__aenter__()


async def test_a_socket_without_a_listener_is_one_clear_error(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "sock"))
        with pytest.raises(SandboxUnavailable, match="Connection refused; is it running"):
            async with Daemon(Endpoint(f"unix://{tmp_path}/sock")):
                pass


async def test_a_daemon_that_dies_ends_streams_and_calls(dockerd):
    async with Daemon(find_endpoint(dockerd.url, None, {})) as daemon:
        made = await daemon.create_container(config("cat"), f"plimsoll-test-{short_id()}")
        stream = await daemon.attach(made)
        await daemon.start(made)
        waiting = asyncio.create_task(exit_code(daemon, made, 600))
        await asyncio.sleep(0.2)
        dockerd.signal(signal.SIGKILL)
        async with asyncio.timeout(60):
            assert await stream.read() is None
            with pytest.raises(SandboxUnavailable, match="closed the connection"):
                await waiting
            with pytest.raises(SandboxUnavailable, match="cannot be reached"):
                await daemon.inspect(made)
        await stream.close()
        dockerd.restart()
        assert await daemon.remove(made) is True


async def test_copying_files_to_a_frozen_daemon_times_out(dockerd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(daemon_module, "PUT_SECONDS", 1.0)
    async with Daemon(find_endpoint(dockerd.url, None, {})) as daemon:
        made = await daemon.create_container(config("cat"), f"plimsoll-test-{short_id()}")
        dockerd.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                with pytest.raises(SandboxUnavailable, match="hangs: no response within 1 s"):
                    await daemon.put_archive(made, "/", b"\0" * 1024)
        finally:
            dockerd.signal(signal.SIGCONT)
        await daemon.remove(made)


def test_the_full_disk_message_does_not_suggest_pruning_volumes_or_networks():
    message = str(
        response_error("here", 500, b"write /x: no space left on device", "start a container")
    )
    assert "plimsoll clean --expired" in message
    assert "system prune" not in message


@pytest.fixture
def known_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").touch()
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("known_hosts")
async def test_a_daemon_unreachable_over_ssh_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(**_: object) -> None:
        raise ConnectionRefusedError(111, "Connect call failed")

    monkeypatch.setattr(aiodocker.ssh, "asyncssh", SimpleNamespace(connect=refuse))
    with pytest.raises(
        DaemonUnreachable, match=r"ssh://me@there cannot be reached: .*Connect call"
    ):
        async with Daemon(Endpoint("ssh://me@there")):
            pass
    assert not caplog.records


@pytest.mark.usefixtures("known_hosts")
async def test_ssh_has_no_connection_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aiodocker.ssh, "asyncssh", SimpleNamespace())
    connector = SshConnector("ssh://me@there")
    assert connector.limit == 0
    await connector.close()
