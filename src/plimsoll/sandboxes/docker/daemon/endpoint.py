"""The address of a Docker daemon, and the check that it is safe to use.

Access to a daemon is root access to its host. So a daemon on the network is reached over TLS with
a verified certificate, or over ssh; any other host must be allowed by name in the config.
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

    Without ca.pem the daemon's certificate is verified against the system's authorities.
    """

    folder: Path | None

    def ssl_context(self) -> ssl.SSLContext:
        """TLS that verifies the daemon, with a client certificate if there is one."""
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
    """The address of a daemon. Made by `find_endpoint`, which refuses unsafe addresses."""

    url: str
    certificates: Certificates | None = None

    @property
    def is_local(self) -> bool:
        """Whether the daemon listens on a unix socket of this host."""
        return self.url.startswith("unix://")

    def __str__(self) -> str:
        """The address for messages, without a password."""
        parts = urlsplit(self.url)
        user = parts.username if parts.scheme == "ssh" else None
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{f'{user}@' if user else ''}{host}{parts.path}"

    def environment(self) -> dict[str, str]:
        """Variables that make the `docker` command use this daemon."""
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
    """The given host or context, else the daemon that Docker's own rules select.

    Raises `UsageError` for an unusable or unsafe address, `SandboxUnavailable` for a daemon that
    does not exist.
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
                f"the Docker context {name!r} does not verify the daemon's certificate, so "
                "anyone on the network can impersonate it: give the context the daemon's ca.pem"
            )
        return _from_url(found.host, certificates or found.certificates, allow_plain, {})
    if env.get("DOCKER_HOST"):
        return _from_url(env["DOCKER_HOST"], certificates or _from_env(env), allow_plain, env)
    return _default_socket(env)


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
                f"{Endpoint(url)}: daemons over ssh need the package asyncssh: pip install asyncssh"
            )
        return Endpoint(url)
    if parts.scheme not in ("tcp", "http", "https"):
        raise UsageError(
            f"{url!r} is not the address of a Docker daemon: expected unix:///path, "
            "tcp://host:port or ssh://user@host"
        )
    return _tcp(url, parts, certificates, allow_plain, env)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        complete = parts.scheme == "unix" or bool(parts.hostname)
        _ = parts.port  # raises for an invalid port
    except ValueError as error:
        raise UsageError(f"{url!r} is not the address of a Docker daemon: {error}") from None
    if not complete:
        raise UsageError(
            f"{url!r} is not the address of a Docker daemon: it names no host; expected "
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
    address = str(Endpoint(url))
    if certificates is not None or parts.scheme == "https":
        checked = Certificates(certificates)
        _check(checked, address)
        return Endpoint(_with_port(parts, 2376), checked)
    if env.get("DOCKER_TLS"):
        raise UsageError(
            f"{address}: DOCKER_TLS asks for TLS without verification, so anyone on the network "
            "can impersonate the daemon: set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH"
        )
    if not _is_loopback(host) and host not in (name.lower() for name in allow_plain):
        raise UsageError(
            f"{address} is a Docker daemon without TLS, and access to it is root access to {host}: "
            "use TLS (DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH), or allow it by name "
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


def _check(certificates: Certificates, address: str) -> None:
    """Raise `UsageError` for missing, unreadable or invalid files."""
    folder = certificates.folder
    if folder is not None:
        found = [name for name in _FILES if (folder / name).exists()]
        if not found:
            raise UsageError(f"{address}: {folder} has none of {', '.join(_FILES)} for TLS")
        for name in found:
            if not os.access(folder / name, os.R_OK):
                raise UsageError(f"{address}: {folder / name} cannot be read")
        if ("cert.pem" in found) != ("key.pem" in found):
            raise UsageError(f"{address}: {folder} has only one of cert.pem and key.pem")
    try:
        certificates.ssl_context()
    except (ssl.SSLError, OSError) as error:
        raise UsageError(
            f"{address}: the certificates in {folder} cannot be used: {error}"
        ) from None


def _default_socket(env: Mapping[str, str]) -> Endpoint:
    """The first of the usual sockets that exists on this host."""
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
        f"no Docker daemon was found: there is no {' and no '.join(paths)}; start one, or set "
        "one with DOCKER_HOST, a Docker context, or host in [docker]"
    )


def _socket(path: str) -> Endpoint:
    """The endpoint of a socket that exists and that this user may use."""
    found = Endpoint(f"unix://{path}")
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except PermissionError:
        raise _permission_error(path) from None
    except OSError:
        raise SandboxUnavailable(
            f"there is no Docker daemon at {found}: no such socket; is the daemon running?"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{found}: {path} is not a socket")
    if not os.access(path, os.R_OK | os.W_OK):
        raise _permission_error(path)
    return found


def _permission_error(path: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"this user may not use the Docker daemon at unix://{path}: add the user to the socket's "
        "group (usually docker; its members are root on this host), or run a rootless daemon"
    )
