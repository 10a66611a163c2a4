"""Calls to a real engine: what they answer, and the words for what goes wrong."""

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

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.docker.daemon import api as engine_module
from plimsoll.sandboxes.docker.daemon import client
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint, find_endpoint
from plimsoll.sandboxes.docker.daemon.errors import DaemonError, DaemonUnreachable, response_error
from plimsoll.sandboxes.docker.daemon.ssh import Ssh
from plimsoll.sandboxes.docker.labels import from_docker, to_docker
from plimsoll.sandboxes.host.owners import this_process

LABELS = to_docker(Labels("engine-test", "1", this_process(), time.time() + 600))


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
async def container(engine: Daemon) -> AsyncIterator[str]:
    """A container that gives back what it gets; not yet started."""
    made = await engine.create_container(config("cat"), f"plimsoll-test-{short_id()}")
    yield made
    await engine.remove(made)


async def test_a_container_is_spoken_to_and_removed(engine: Daemon, container: str):
    wire = await engine.attach(container)
    await engine.start(container)
    await wire.write(b"hello")
    assert await wire.read() == (1, b"hello")
    seen = await engine.inspect(container)
    assert seen is not None
    assert seen.state.running
    assert from_docker(seen.config.labels) == from_docker(LABELS)
    assert container in [row.id for row in await engine.containers("plimsoll.run=engine-test")]
    await engine.kill(container)
    assert await wire.read() is None
    assert await engine.wait(container, 10) == 137
    with pytest.raises(SandboxUnavailable, match="has ended"):
        for _ in range(100):  # the first write may still find the connection
            await wire.write(b"more")
            await asyncio.sleep(0.01)
    await wire.close()
    assert await engine.remove(container) is True
    assert await engine.remove(container) is False
    assert await engine.inspect(container) is None


async def test_stdout_and_stderr_are_told_apart_and_large_output_is_whole(engine: Daemon):
    script = "head -c 3000000 /dev/zero; echo oops >&2"
    made = await engine.create_container(config("sh", "-c", script), f"plimsoll-test-{short_id()}")
    wire = await engine.attach(made)
    await engine.start(made)
    sizes = {1: 0, 2: 0}
    while (piece := await wire.read()) is not None:
        sizes[piece[0]] += len(piece[1])
    await wire.close()
    await engine.remove(made)
    assert sizes == {1: 3_000_000, 2: 5}


async def test_closing_the_wire_ends_what_reads_from_it(engine: Daemon, container: str):
    wire = await engine.attach(container)
    await engine.start(container)
    await wire.close()
    assert await engine.wait(container, 10) == 0


async def test_files_go_in_and_out_of_a_container_that_never_ran(engine: Daemon, container: str):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writing:
        info = tarfile.TarInfo("a.txt")
        info.size = 2
        writing.addfile(info, io.BytesIO(b"hi"))
    await engine.put_archive(container, "/tmp", tar.getvalue())
    async with engine.get_archive(container, "/tmp/a.txt") as pieces:
        got = b"".join([piece async for piece in pieces])
    with tarfile.open(fileobj=io.BytesIO(got)) as reading:
        file = reading.extractfile("a.txt")
        assert file is not None
        assert file.read() == b"hi"
    folder = await engine.stat_archive(container, "/tmp")
    link = await engine.stat_archive(container, "/bin")
    assert folder is not None and folder.is_folder and not folder.is_link
    assert link is not None and link.is_link
    assert await engine.stat_archive(container, "/nothing/here") is None


async def test_an_image_is_imported_named_and_removed(engine: Daemon):
    name = f"plimsoll/test:{short_id()}"
    tar = io.BytesIO()
    tarfile.open(fileobj=tar, mode="w").close()
    labels = {**LABELS, "odd": 'quotes " and $dollars and \\'}
    made = await engine.import_image(tar.getvalue(), name, labels)
    found = await engine.image(name)
    assert found is not None
    assert found.id == made
    assert found.labels == labels
    assert name in [tag for row in await engine.images("odd") for tag in row.repo_tags or []]
    assert await engine.remove_image(name) is True
    assert await engine.remove_image(name) is False
    assert await engine.image(name) is None


async def test_networks_and_volumes_are_made_listed_and_removed(engine: Daemon, container: str):
    name = f"plimsoll-test-{short_id()}"
    network = await engine.create_network(name, LABELS, internal=True)
    await engine.disconnect("none", container)
    await engine.connect(name, container)
    await engine.start(container)
    seen = await engine.network(name)
    assert seen is not None
    assert seen.internal
    assert set(seen.containers or {}) == {container}
    await engine.disconnect(name, container)
    assert network in [row.id for row in await engine.networks("plimsoll.run=engine-test")]
    assert await engine.remove_network(name) is True
    assert await engine.remove_network(name) is False
    await engine.create_volume(name, LABELS)
    assert name in [volume.name for volume in await engine.volumes("plimsoll.run=engine-test")]
    assert await engine.remove_volume(name) is True
    assert await engine.volume(name) is None


async def test_what_the_engine_refuses_is_told_with_its_words(engine: Daemon, container: str):
    with pytest.raises(DaemonError, match="cannot create a container: No such image") as caught:
        await engine.create_container({"Image": "no-such-image:1"}, f"x{short_id()}")
    assert caught.value.status == 404
    with pytest.raises(DaemonError) as caught:
        await engine.kill(container)
    assert caught.value.status == 409
    with pytest.raises(DaemonError, match="attach to a container: No such container"):
        await engine.attach("nosuchcontainer")


def test_a_full_disk_is_the_engine_s_and_says_so():
    said = b'{"message": "write /x/layer.tar: no space left on device"}'
    error = response_error("tcp://far:2376", 500, said, "create a container")
    assert isinstance(error, SandboxUnavailable)
    assert "the disk of the Docker engine at tcp://far:2376 is full" in str(error)


async def test_an_engine_behind_tls_is_the_same(tls_engine):
    endpoint = find_endpoint(tls_engine.url, None, {}, certificates=tls_engine.certificates)
    async with Daemon(endpoint) as engine:
        made = await engine.create_container(config("cat"), f"plimsoll-test-{short_id()}")
        wire = await engine.attach(made)
        await engine.start(made)
        await wire.write(b"hello" * 100_000)
        got = 0
        while got < 500_000 and (piece := await wire.read()):
            got += len(piece[1])
        await wire.close()
        await engine.remove(made)
    assert got == 500_000


async def test_an_engine_that_others_signed_for_is_not_trusted(tls_engine, tmp_path: Path):
    for name in ("cert.pem", "key.pem"):  # without its ca.pem: the system's authorities
        (tmp_path / name).write_bytes((tls_engine.certificates / name).read_bytes())
    endpoint = find_endpoint(tls_engine.url, None, {}, certificates=tmp_path)
    with pytest.raises(SandboxUnavailable, match="not who it should be"):
        async with Daemon(endpoint):
            pass


async def test_an_engine_that_wants_a_certificate_gets_no_call_without_one(
    tls_engine, tmp_path: Path
):
    (tmp_path / "ca.pem").write_bytes((tls_engine.certificates / "ca.pem").read_bytes())
    endpoint = find_endpoint(tls_engine.url, None, {}, certificates=tmp_path)
    with pytest.raises(SandboxUnavailable):
        async with Daemon(endpoint):
            pass


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[Endpoint]:
    """Something else than an engine that listens on a socket, and says one thing."""
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
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "does not speak like a Docker"),
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"ApiVersion":"abc"}',
            "like a Docker.*'abc'",
        ),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"ApiVersion":"1"}', "like a Docker.*'1'"),
        (b"SSH-2.0-x\r\n", "is gone or restarted"),
        (b"", "hangs: no answer within 1 s"),
    ],
)
async def test_what_is_no_engine_or_hangs_is_one_message(
    tmp_path: Path, answer: bytes, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client, "CONNECT_SECONDS", 30.0 if answer else 1.0)
    with (
        answering(tmp_path / "sock", answer) as endpoint,
        pytest.raises(SandboxUnavailable, match=said),
    ):
        await Daemon(endpoint).__aenter__()


async def test_nobody_at_the_socket_is_one_message(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "sock"))
        with pytest.raises(SandboxUnavailable, match="Connection refused; is it running"):
            async with Daemon(Endpoint(f"unix://{tmp_path}/sock")):
                pass


async def test_an_engine_that_dies_ends_streams_and_calls(dockerd):
    async with Daemon(find_endpoint(dockerd.url, None, {})) as engine:
        made = await engine.create_container(config("cat"), f"plimsoll-test-{short_id()}")
        wire = await engine.attach(made)
        await engine.start(made)
        waiting = asyncio.create_task(engine.wait(made, 600))
        await asyncio.sleep(0.2)
        dockerd.signal(signal.SIGKILL)
        async with asyncio.timeout(60):
            assert await wire.read() is None
            with pytest.raises(SandboxUnavailable, match="gone or restarted"):
                await waiting
            with pytest.raises(SandboxUnavailable, match="cannot be reached"):
                await engine.inspect(made)
        await wire.close()
        dockerd.restart()
        assert await engine.remove(made) is True


async def test_an_engine_that_freezes_while_files_are_put_there_is_given_up(
    dockerd, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine_module, "PUT_SECONDS", 1.0)
    async with Daemon(find_endpoint(dockerd.url, None, {})) as engine:
        made = await engine.create_container(config("cat"), f"plimsoll-test-{short_id()}")
        dockerd.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                with pytest.raises(SandboxUnavailable, match="hangs: no answer within 1 s"):
                    await engine.put_archive(made, "/", b"\0" * 1024)
        finally:
            dockerd.signal(signal.SIGCONT)
        await engine.remove(made)


def test_a_full_disk_is_no_reason_to_prune_what_runs_use():
    said = str(
        response_error("here", 500, b"write /x: no space left on device", "start a container")
    )
    assert "plimsoll clean --expired" in said
    assert "system prune" not in said


@pytest.fixture
def known_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").touch()
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("known_hosts")
async def test_an_engine_that_ssh_does_not_reach_is_gone_in_one_line(
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
async def test_ssh_takes_any_number_of_connections(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aiodocker.ssh, "asyncssh", SimpleNamespace())
    connector = Ssh("ssh://me@there")
    assert connector.limit == 0
    await connector.close()
