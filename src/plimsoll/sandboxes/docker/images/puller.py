"""Images that are used as they are: found on the engine, or pulled from their registry."""

import base64
from contextlib import aclosing

import msgspec

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.cli_config import DockerCliConfig
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import ImageInspect
from plimsoll.sandboxes.docker.single_flight import SingleFlight
from plimsoll.sandboxes.protocol import OnOutput

__all__ = ["Puller"]

_DEFAULT_REGISTRY = "https://index.docker.io/v1/"
"""The name that Docker's own registry has among the passwords."""


class Puller:
    """Gets images for one engine; equal ones that are wanted at once are pulled once."""

    def __init__(self, engine: Daemon, config: DockerCliConfig) -> None:
        self._engine = engine
        self._config = config
        self._pulls = SingleFlight[ImageInspect]()

    async def ensure(
        self, name: str, platform: str = "", on_output: OnOutput | None = None
    ) -> ImageInspect:
        """The image of this name. A `BuildError` says why it cannot be had, and what to do."""
        found = await self._engine.image(name)
        if found is not None:
            return found

        async def pull(say: OnOutput) -> ImageInspect:
            return await self._pull(name, platform, say)

        return await self._pulls.join(f"{name} {platform}", pull, on_output)

    async def _pull(self, name: str, platform: str, say: OnOutput) -> ImageInspect:
        why = "it was pulled, and is not there"
        try:
            async with aclosing(self._engine.pull(name, self._auth(name), platform)) as lines:
                async for told in lines:
                    if told.status and not told.progress:
                        say(
                            "stdout", f"{' '.join(filter(None, (told.id, told.status)))}\n".encode()
                        )
            found = await self._engine.image(name)
            if found is not None:
                return found
        except DaemonError as error:
            why = error.said
        raise BuildError(
            f"the Docker engine at {self._engine.endpoint} does not have the image {name} and "
            f"could not pull it: {why}; check the name{self._login(name)}, or get the image there "
            f"by hand: docker pull {name}, or docker save on a host that has it and docker load"
        )

    def _login(self, name: str) -> str:
        """That a password is needed which is not where it is looked for, where that may be."""
        config, registry = self._config, _registry(name)
        elsewhere = "" if registry in config.logins() else config.not_used(registry)
        if not elsewhere:
            return ""
        return (
            f", give the password of a private registry in `auths` of {config.file} ({elsewhere} "
            "is not asked)"
        )

    def _auth(self, name: str) -> str:
        login = self._config.logins().get(_registry(name))
        return base64.urlsafe_b64encode(msgspec.json.encode(login)).decode() if login else ""


def _registry(name: str) -> str:
    """The registry of an image, as it is called among the passwords."""
    first, slash, _ = name.partition("/")
    is_host = slash and (first == "localhost" or any(sign in first for sign in ".:"))
    return first if is_host else _DEFAULT_REGISTRY
