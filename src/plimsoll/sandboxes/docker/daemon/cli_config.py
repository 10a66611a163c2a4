"""What the Docker command's own configuration says: contexts, and passwords of registries."""

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
"""A name that no context has: it stands for the environment and the usual sockets."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Context:
    """An engine that somebody gave a name with `docker context create`."""

    name: str
    host: str
    skips_verification: bool
    certificates: Path | None
    """The folder with its ca.pem, cert.pem and key.pem, where it has any."""


class Login(msgspec.Struct, frozen=True):
    """What a registry wants to know, as the engine's API spells it."""

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
    skips: bool = msgspec.field(default=False, name="SkipTLSVerify")


class _Meta(msgspec.Struct):
    name: str = msgspec.field(name="Name")
    endpoints: dict[str, _ContextEndpoint] = msgspec.field(
        default_factory=dict[str, _ContextEndpoint], name="Endpoints"
    )


class DockerCliConfig:
    """The folder `~/.docker`, or the one that DOCKER_CONFIG names. It need not be there."""

    def __init__(self, env: Mapping[str, str]) -> None:
        own = env.get("DOCKER_CONFIG")
        self.folder = Path(own) if own else Path(env.get("HOME") or Path.home()) / ".docker"

    @property
    def current_context(self) -> str:
        """The context that `docker context use` chose; "" where there is none."""
        name = self._config().current
        return "" if name == DEFAULT else name

    def context(self, name: str) -> Context:
        """A context by its name. An unknown one is a `UsageError` that lists the known."""
        digest = hashlib.sha256(name.encode()).hexdigest()
        file = self.folder / "contexts/meta" / digest / "meta.json"
        if not file.is_file():
            known = ", ".join(self.contexts()) or "none"
            raise UsageError(
                f"no Docker context is called {name!r}; known in {self.folder}: {known}"
            )
        place = _read(file, _Meta).endpoints.get("docker", _ContextEndpoint())
        if not place.host:
            raise UsageError(f"{file}: the Docker context {name!r} names no engine")
        certificates = self.folder / "contexts/tls" / digest / "docker"
        has_any = certificates.is_dir() and any(certificates.iterdir())
        return Context(name, place.host, place.skips, certificates if has_any else None)

    def contexts(self) -> list[str]:
        """Every context's name."""
        files = (self.folder / "contexts/meta").glob("*/meta.json")
        return sorted(_read(file, _Meta).name for file in files)

    def logins(self) -> dict[str, Login]:
        """User and password by registry, as far as they stand in the file itself."""
        found: dict[str, Login] = {}
        for registry, entry in self._config().auths.items():
            try:
                user, colon, password = base64.b64decode(entry.auth).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                continue
            if colon:
                found[registry] = Login(user, password.rstrip("\0"), registry)
        return found

    def not_used(self, registry: str) -> str:
        """Where else a password of this registry may be kept, which nobody here asks; or ""."""
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
