"""Which Docker engine is meant, and whether it may be talked to the way that was asked for.

Whoever reaches an engine is root on its host. So an engine across a network is spoken to over
TLS with its certificate verified, or over ssh; anything else must be allowed by name.
"""

import importlib.util
import ipaddress
import os
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from plimsoll.core.errors import SandboxUnavailable, UsageError
from plimsoll.sandboxes.docker.daemon.cli_config import DEFAULT, DockerCliConfig

__all__ = ["Certificates", "Endpoint", "find_endpoint"]

_FILES = ("ca.pem", "cert.pem", "key.pem")


@dataclass(frozen=True, slots=True)
class Certificates:
    """A folder with `ca.pem`, `cert.pem` and `key.pem`, as DOCKER_CERT_PATH names it.

    Without ca.pem the engine's certificate is checked against the system's authorities.
    """

    folder: Path | None

    def ssl_context(self) -> ssl.SSLContext:
        """TLS that verifies the engine, and proves who we are where there is a certificate."""
        context = ssl.create_default_context(cafile=self._file("ca.pem"))
        certificate = self._file("cert.pem")
        if certificate:
            context.load_cert_chain(certificate, self._file("key.pem"))
        return context

    def _file(self, name: str) -> str | None:
        path = self.folder / name if self.folder else None
        return str(path) if path and path.exists() else None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine is. Made by `find_endpoint`, which refuses what is not safe."""

    url: str
    certificates: Certificates | None = None

    @property
    def is_local(self) -> bool:
        """Whether it listens on a socket of this host."""
        return self.url.startswith("unix://")

    def __str__(self) -> str:
        """The address for people, without a password that may stand in it."""
        parts = urlsplit(self.url)
        user = parts.username if parts.scheme == "ssh" else None
        place = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{f'{user}@' if user else ''}{place}{parts.path}"

    def environment(self) -> dict[str, str]:
        """What tells the `docker` command to use this engine."""
        env = {"DOCKER_HOST": self.url}
        if self.certificates is not None:
            env["DOCKER_TLS_VERIFY"] = "1"
            if self.certificates.folder is not None:
                env["DOCKER_CERT_PATH"] = str(self.certificates.folder)
        return env


def find_endpoint(
    host: str | None,
    context: str | None,
    env: Mapping[str, str],
    *,
    certificates: Path | None = None,
    allow_plain: Sequence[str] = (),
) -> Endpoint:
    """The engine that is meant: the host or context that was given, or what Docker's own rules say.

    A `UsageError` says what cannot be used as it is, `SandboxUnavailable` what is not there.
    """
    given = host or (None if context else env.get("DOCKER_HOST"))
    if given:
        return _from_url(given, certificates or _from_env(env), allow_plain, env)
    config = DockerCliConfig(env)
    name = context or env.get("DOCKER_CONTEXT") or config.current_context
    if name and name != DEFAULT:
        found = config.context(name)
        if found.skips_verification:
            raise UsageError(
                f"the Docker context {name!r} does not verify the engine's certificate, so anybody "
                "on the way can take its place: give the context the ca.pem of the engine"
            )
        return _from_url(found.host, certificates or found.certificates, allow_plain, {})
    if env.get("DOCKER_HOST"):
        return _from_url(env["DOCKER_HOST"], certificates or _from_env(env), allow_plain, env)
    return _usual(env)


def _from_env(env: Mapping[str, str]) -> Path | None:
    if env.get("DOCKER_CERT_PATH"):
        return Path(env["DOCKER_CERT_PATH"])
    return DockerCliConfig(env).folder if env.get("DOCKER_TLS_VERIFY") else None


def _from_url(
    url: str, certificates: Path | None, allow_plain: Sequence[str], env: Mapping[str, str]
) -> Endpoint:
    parts = _split(url)
    if parts.scheme == "unix":
        return _socket(url.removeprefix("unix://"))
    if parts.scheme == "ssh":
        if importlib.util.find_spec("asyncssh") is None:
            raise UsageError(
                f"{Endpoint(url)}: engines over ssh need the package asyncssh: pip install asyncssh"
            )
        return Endpoint(url)
    if parts.scheme not in ("tcp", "http", "https"):
        raise UsageError(
            f"{url!r} is no address of a Docker engine: expected unix:///path, tcp://host:port "
            "or ssh://user@host"
        )
    return _tcp(url, parts, certificates, allow_plain, env)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        complete = parts.scheme == "unix" or bool(parts.hostname)
        _ = parts.port  # a port that is no number is found out only when asked for
    except ValueError as error:
        raise UsageError(f"{url!r} is no address of a Docker engine: {error}") from None
    if not complete:
        raise UsageError(
            f"{url!r} is no address of a Docker engine: it names no host; expected "
            "unix:///path, tcp://host:port or ssh://user@host"
        )
    return parts


def _tcp(
    url: str,
    parts: SplitResult,
    certificates: Path | None,
    allow_plain: Sequence[str],
    env: Mapping[str, str],
) -> Endpoint:
    host = parts.hostname or ""
    said = str(Endpoint(url))
    if certificates is not None or parts.scheme == "https":
        checked = Certificates(certificates)
        _check(checked, said)
        return Endpoint(_with_port(parts, 2376), checked)
    if env.get("DOCKER_TLS"):
        raise UsageError(
            f"{said}: DOCKER_TLS asks for TLS without verification, so anybody on the way can "
            "take the engine's place: set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH"
        )
    if not _is_loopback(host) and host not in (name.lower() for name in allow_plain):
        raise UsageError(
            f"{said} is a Docker engine without TLS, and whoever reaches it is root on {host}: "
            "give it TLS (DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH), or allow it by name "
            f'(allow_plain = ["{host}"] in [docker])'
        )
    return Endpoint(_with_port(parts, 2375))


def _with_port(parts: SplitResult, default: int) -> str:
    host = parts.hostname or ""
    bracketed = f"[{host}]" if ":" in host else host
    return f"tcp://{bracketed}:{parts.port or default}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check(certificates: Certificates, said: str) -> None:
    """Unreadable or wrong files are found out here, each with a message of its own."""
    folder = certificates.folder
    if folder is not None:
        there = [name for name in _FILES if (folder / name).exists()]
        if not there:
            raise UsageError(f"{said}: {folder} has none of {', '.join(_FILES)} for TLS")
        for name in there:
            if not os.access(folder / name, os.R_OK):
                raise UsageError(f"{said}: {folder / name} cannot be read")
        if ("cert.pem" in there) != ("key.pem" in there):
            raise UsageError(f"{said}: {folder} has only one of cert.pem and key.pem")
    try:
        certificates.ssl_context()
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"{said}: the certificates in {folder} cannot be used: {error}") from None


def _usual(env: Mapping[str, str]) -> Endpoint:
    """The socket that an engine of this host has as a rule."""
    home, runtime = env.get("HOME"), env.get("XDG_RUNTIME_DIR")
    paths = ["/var/run/docker.sock"]
    paths += [f"{runtime}/docker.sock"] if runtime else []
    paths += (
        [f"{home}/.docker/run/docker.sock", f"{home}/.docker/desktop/docker.sock"] if home else []
    )
    for path in paths:
        if Path(path).exists():
            return _socket(path)
    raise SandboxUnavailable(
        f"no Docker engine was found: there is no {' and no '.join(paths)}; start one, or name "
        "one with DOCKER_HOST, a Docker context, or host in [docker]"
    )


def _socket(path: str) -> Endpoint:
    """A socket that is there and that this user may use."""
    found = Endpoint(f"unix://{path}")
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except PermissionError:
        raise _not_allowed(path) from None
    except OSError:
        raise SandboxUnavailable(
            f"there is no Docker engine at {found}: no such socket; is the engine running?"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{found}: {path} is not a socket")
    if not os.access(path, os.R_OK | os.W_OK):
        raise _not_allowed(path)
    return found


def _not_allowed(path: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"this user may not use the Docker engine at unix://{path}: add the user to the socket's "
        "group (as a rule docker; who is in it is root on this host), or run a rootless engine"
    )
