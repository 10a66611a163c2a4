"""The configuration of the `docker` command: contexts, and registry logins."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from plimsoll.core.errors import UsageError

__all__ = ["Context", "DockerCliConfig", "Login"]

DEFAULT = "default"
"""The name that stands for no context: the environment and the usual sockets are used."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Context:
    """A daemon with a name, as `docker context create` stores it."""

    name: str
    host: str
    skips_verification: bool
    certificates: Path | None
    """The folder with ca.pem, cert.pem and key.pem, if the context has any."""


class Login(msgspec.Struct, frozen=True):
    """Credentials for a registry, in the format of the Docker API."""

    username: str
    password: str
    serveraddress: str


class _Auth(msgspec.Struct):
    auth: str = ""
    token: str = msgspec.field(default="", name="identitytoken")


class _Config(msgspec.Struct):
    current: str = msgspec.field(default="", name="currentContext")
    auths: dict[str, _Auth] = {}
    store: str = msgspec.field(default="", name="credsStore")
    helpers: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="credHelpers")


class _ContextEndpoint(msgspec.Struct):
    host: str = msgspec.field(default="", name="Host")
    skips_verification: bool = msgspec.field(default=False, name="SkipTLSVerify")


class _Meta(msgspec.Struct):
    name: str = msgspec.field(name="Name")
    endpoints: dict[str, _ContextEndpoint] = msgspec.field(
        default_factory=dict[str, _ContextEndpoint], name="Endpoints"
    )


class DockerCliConfig:
    """The folder `~/.docker`, or the one in DOCKER_CONFIG. It need not exist."""

    def __init__(self, env: Mapping[str, str]) -> None:
        own = env.get("DOCKER_CONFIG")
        self.folder = Path(own) if own else Path(env.get("HOME") or Path.home()) / ".docker"

    @property
    def current_context(self) -> str:
        """The context selected by `docker context use`; "" if there is none."""
        name = self._config().current
        return "" if name == DEFAULT else name

    def context(self, name: str) -> Context:
        """A context by its name. An unknown one is a `UsageError` that lists the contexts."""
        digest = hashlib.sha256(name.encode()).hexdigest()
        file = self.folder / "contexts/meta" / digest / "meta.json"
        if not file.is_file():
            names = ", ".join(self.contexts()) or "none"
            raise UsageError(
                f"there is no Docker context {name!r}; contexts in {self.folder}: {names}"
            )
        endpoint = _read(file, _Meta).endpoints.get("docker", _ContextEndpoint())
        if not endpoint.host:
            raise UsageError(f"{file}: the Docker context {name!r} names no daemon")
        certificates = self.folder / "contexts/tls" / digest / "docker"
        has_any = certificates.is_dir() and any(certificates.iterdir())
        return Context(
            name, endpoint.host, endpoint.skips_verification, certificates if has_any else None
        )

    def contexts(self) -> list[str]:
        """The names of all contexts."""
        files = (self.folder / "contexts/meta").glob("*/meta.json")
        return sorted(_read(file, _Meta).name for file in files)

    def logins(self) -> dict[str, Login]:
        """User and password by registry, for the passwords stored in the file itself."""
        found: dict[str, Login] = {}
        for registry, entry in self._config().auths.items():
            try:
                user, colon, password = base64.b64decode(entry.auth).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                continue
            if colon:
                found[registry] = Login(user, password.rstrip("\0"), registry)
        return found

    def unsupported_login(self, registry: str) -> str:
        """The credential helper or token of this registry, which Plimsoll does not use; or ""."""
        config = self._config()
        if helper := config.helpers.get(registry) or config.store:
            return f"the helper docker-credential-{helper}"
        return "an identity token" if config.auths.get(registry, _Auth()).token else ""

    @property
    def file(self) -> Path:
        return self.folder / "config.json"

    def _config(self) -> _Config:
        return _read(self.file, _Config) if self.file.is_file() else _Config()


def _read(file: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
