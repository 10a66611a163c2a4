"""Pulls images that the daemon does not have from their registry."""

import base64
from contextlib import aclosing

import msgspec

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.cli_config import DockerCliConfig
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import ImageInspect
from plimsoll.sandboxes.protocol import OnOutput
from plimsoll.sandboxes.single_flight import SingleFlight

__all__ = ["Puller"]

_DEFAULT_REGISTRY = "https://index.docker.io/v1/"
"""The key of Docker Hub in the config file's `auths`."""


class Puller:
    """Pulls images for one daemon; concurrent pulls of one image are a single flight."""

    def __init__(self, daemon: Daemon, config: DockerCliConfig) -> None:
        self._daemon = daemon
        self._config = config
        self._pulls = SingleFlight[ImageInspect]()

    async def ensure(
        self, name: str, platform: str = "", on_output: OnOutput | None = None
    ) -> ImageInspect:
        """Find or pull an image. Raises `BuildError` with the reason and the remedy."""
        try:
            found = await self._daemon.image(name)
        except DaemonError as error:
            if error.status != 400:
                raise
            raise BuildError(f"{name!r} is not the name of an image: {error.reason}") from None
        if found is not None:
            return found

        async def pull(emit: OnOutput) -> ImageInspect:
            return await self._pull(name, platform, emit)

        return await self._pulls.run(f"{name} {platform}", pull, on_output)

    async def _pull(self, name: str, platform: str, emit: OnOutput) -> ImageInspect:
        reason = "the pull ended without the image"
        try:
            async with aclosing(self._daemon.pull(name, self._auth(name), platform)) as lines:
                async for line in lines:
                    if line.status and not line.progress:
                        text = " ".join(filter(None, (line.id, line.status)))
                        emit("stdout", f"{text}\n".encode())
            found = await self._daemon.image(name)
            if found is not None:
                return found
        except DaemonError as error:
            reason = error.reason
        raise BuildError(
            f"the Docker daemon at {self._daemon.endpoint} does not have the image {name} and "
            f"could not pull it: {reason}; check the name{self._login_hint(name)}, or load the "
            f"image there: docker pull {name}, or docker save on a host that has it and docker load"
        )

    def _login_hint(self, name: str) -> str:
        """A hint for a registry whose password is in a helper that Plimsoll does not use."""
        config, registry = self._config, _registry(name)
        unsupported = "" if registry in config.logins() else config.unsupported_login(registry)
        if not unsupported:
            return ""
        return (
            f", give the password of a private registry in `auths` of {config.file} ({unsupported} "
            "is not used)"
        )

    def _auth(self, name: str) -> str:
        login = self._config.logins().get(_registry(name))
        return base64.urlsafe_b64encode(msgspec.json.encode(login)).decode() if login else ""


def _registry(name: str) -> str:
    """The registry of an image, as a key of `auths`."""
    first, slash, _ = name.partition("/")
    is_host = slash and (first == "localhost" or any(sign in first for sign in ".:"))
    return first if is_host else _DEFAULT_REGISTRY
