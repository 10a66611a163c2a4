"""The daemon that is selected, and the refusal of unsafe addresses with a clear message."""

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plimsoll.core.errors import PlimsollError, SandboxUnavailable, UsageError
from plimsoll.sandboxes.docker.daemon import endpoint as endpoints
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint, find_endpoint


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment that names no daemon."""
    return {"HOME": str(tmp_path)}


@pytest.fixture
def sock(tmp_path: Path) -> Iterator[str]:
    """The address of a unix socket with a listener."""
    path = tmp_path / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        yield f"unix://{path}"


@pytest.fixture
def write_context(tmp_path: Path) -> Callable[..., None]:
    """Writes a context as `docker context create` does."""

    def write(name: str, host: str, *, skip: bool = False, certificates: Path | None = None):
        digest = hashlib.sha256(name.encode()).hexdigest()
        folder = tmp_path / ".docker/contexts/meta" / digest
        folder.mkdir(parents=True)
        endpoint = {"Host": host, "SkipTLSVerify": skip}
        meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}
        (folder / "meta.json").write_text(json.dumps(meta))
        if certificates is not None:
            tls = tmp_path / ".docker/contexts/tls" / digest / "docker"
            tls.parent.mkdir(parents=True)
            tls.symlink_to(certificates)

    return write


def refusal(kind: type[PlimsollError], *args: object, **more: object) -> str:
    with pytest.raises(kind) as caught:
        find_endpoint(*args, **more)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_host_comes_before_context_and_environment(
    env: dict[str, str], sock: str, write_context: Callable[..., None], tmp_path: Path
):
    write_context("given", "tcp://127.0.0.1:1")
    write_context("chosen", "tcp://127.0.0.1:2")
    write_context("current", "tcp://127.0.0.1:3")
    config = tmp_path / ".docker/config.json"
    config.write_text('{"currentContext": "current"}')
    everything = {**env, "DOCKER_HOST": "tcp://127.0.0.1:4", "DOCKER_CONTEXT": "chosen"}
    assert find_endpoint(sock, "given", everything) == Endpoint(sock)
    assert find_endpoint(None, "given", everything).url == "tcp://127.0.0.1:1"
    assert find_endpoint(None, None, everything).url == "tcp://127.0.0.1:4"
    assert find_endpoint(None, "default", everything).url == "tcp://127.0.0.1:4"
    del everything["DOCKER_HOST"]
    assert find_endpoint(None, None, everything).url == "tcp://127.0.0.1:2"
    del everything["DOCKER_CONTEXT"]
    assert find_endpoint(None, None, everything).url == "tcp://127.0.0.1:3"
    elsewhere = {**env, "DOCKER_CONFIG": str(tmp_path / ".docker"), "HOME": "/nowhere"}
    assert find_endpoint(None, None, elsewhere).url == "tcp://127.0.0.1:3"


def test_a_rootless_daemon_is_found_by_its_default_socket(env: dict[str, str], tmp_path: Path):
    if Path("/var/run/docker.sock").exists():
        assert find_endpoint(None, None, env).url == "unix:///var/run/docker.sock"
        return
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "docker.sock"))
        found = find_endpoint(None, None, {**env, "XDG_RUNTIME_DIR": str(tmp_path)})
    assert found.url == f"unix://{tmp_path}/docker.sock"
    assert "no Docker daemon was found" in refusal(SandboxUnavailable, None, None, env)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "[::1]"])
def test_plain_tcp_to_this_host_is_allowed(env: dict[str, str], host: str):
    found = find_endpoint(f"tcp://{host}", None, env)
    assert found.url == f"tcp://{host}:2375"
    assert found.certificates is None
    assert not found.is_local


@pytest.mark.parametrize("url", ["tcp://build.example.org:2375", "http://10.0.0.7:2375"])
def test_plain_tcp_to_another_host_is_refused_unless_allowed_by_name(env: dict[str, str], url: str):
    message = refusal(UsageError, url, None, env)
    host = url.removeprefix("tcp://").removeprefix("http://").removesuffix(":2375")
    assert f"root access to {host}" in message
    assert "DOCKER_TLS_VERIFY" in message
    assert f'allow_plain = ["{host}"]' in message
    assert find_endpoint(url, None, env, allow_plain=[host]).url == f"tcp://{host}:2375"
    refusal(UsageError, url, None, env, allow_plain=["other.example.org"])
    refusal(UsageError, None, None, {**env, "DOCKER_HOST": url})


def test_names_that_only_resemble_localhost_are_refused(env: dict[str, str]):
    for host in ("127.0.0.1.example.org", "localhost.example.org", "0.0.0.0", "2130706433"):
        refusal(UsageError, f"tcp://{host}:2375", None, env)


def test_an_unsafe_context_is_refused(env: dict[str, str], write_context: Callable[..., None]):
    write_context("plain", "tcp://10.0.0.7:2375")
    write_context("unverified", "tcp://10.0.0.7:2376", skip=True)
    assert "root access to 10.0.0.7" in refusal(UsageError, None, "plain", env)
    assert "does not verify" in refusal(UsageError, None, "unverified", env)
    plain = {**env, "DOCKER_TLS": "1", "DOCKER_HOST": "tcp://10.0.0.7:2376"}
    assert "without verification" in refusal(UsageError, None, None, plain)


def test_an_unknown_context_lists_the_contexts(
    env: dict[str, str], write_context: Callable[..., None]
):
    write_context("north", "tcp://127.0.0.1:1")
    write_context("east", "tcp://127.0.0.1:1")
    message = refusal(UsageError, None, "nroth", env)
    assert "'nroth'" in message
    assert message.endswith("east, north")


def test_an_invalid_configuration_names_its_file(env: dict[str, str], tmp_path: Path):
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text("{")
    assert "config.json" in refusal(UsageError, None, None, env)


@pytest.mark.parametrize(
    "url", ["daemon.example.org:2375", "tcp://", "tcp://host:port", "npipe:////./pipe/x", "/run/x"]
)
def test_an_invalid_address_is_refused(env: dict[str, str], url: str):
    assert "not the address of a Docker daemon" in refusal(UsageError, url, None, env)


def test_an_unusable_socket_says_why(env: dict[str, str], tmp_path: Path):
    assert "no such socket" in refusal(SandboxUnavailable, f"unix://{tmp_path}/none", None, env)
    (tmp_path / "file").touch()
    assert "is not a socket" in refusal(UsageError, f"unix://{tmp_path}/file", None, env)


def test_a_socket_without_permission_says_how_to_get_it(
    env: dict[str, str], sock: str, monkeypatch: pytest.MonkeyPatch
):
    # Root may use any socket, so the kernel's refusal is simulated.
    monkeypatch.setattr(endpoints.os, "access", lambda *_: False)
    assert "add the user to the socket's group" in refusal(SandboxUnavailable, sock, None, env)


def test_tls_certificates_are_found_as_docker_finds_them(
    env: dict[str, str], tls_daemon, write_context: Callable[..., None], tmp_path: Path
):
    url, folder = tls_daemon.url, tls_daemon.certificates
    by_env = {**env, "DOCKER_HOST": url, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(folder)}
    write_context("remote", url, certificates=folder)
    (tmp_path / "certs").symlink_to(folder)
    for found in (
        find_endpoint(None, None, by_env),
        find_endpoint(None, "remote", env),
        find_endpoint(url, None, env, certificates=tmp_path / "certs"),
    ):
        assert found.url == url
        assert found.certificates is not None
        assert found.environment()["DOCKER_TLS_VERIFY"] == "1"
        assert (Path(found.environment()["DOCKER_CERT_PATH"]) / "ca.pem").exists()


def test_unusable_certificates_are_named(env: dict[str, str], tmp_path: Path):
    url = "tcp://10.0.0.7:2376"
    assert "has none of ca.pem" in refusal(UsageError, url, None, env, certificates=tmp_path)
    (tmp_path / "cert.pem").write_text("x")
    assert "only one of" in refusal(UsageError, url, None, env, certificates=tmp_path)
    (tmp_path / "key.pem").write_text("x")
    assert "cannot be used" in refusal(UsageError, url, None, env, certificates=tmp_path)


def test_ssh_names_the_package_it_needs(env: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoints.importlib.util, "find_spec", lambda _: None)
    assert "pip install asyncssh" in refusal(UsageError, "ssh://me@host", None, env)
    monkeypatch.setattr(endpoints.importlib.util, "find_spec", lambda _: object())
    assert find_endpoint("ssh://me:pass@host:22", None, env).url == "ssh://me:pass@host:22"


def test_an_address_is_shown_without_its_password():
    assert str(Endpoint("ssh://me:secret@host:22")) == "ssh://me@host:22"
    assert str(Endpoint("tcp://me:secret@host:22")) == "tcp://host:22"
    assert str(Endpoint("unix:///var/run/x.sock")) == "unix:///var/run/x.sock"


def test_the_environment_of_the_process_is_ignored(
    env: dict[str, str], sock: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(os.environ, "DOCKER_HOST", "tcp://10.0.0.7:2375")
    assert find_endpoint(None, None, {**env, "DOCKER_HOST": sock}).url == sock
