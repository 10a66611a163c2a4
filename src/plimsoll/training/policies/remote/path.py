"""Servers that an operator updates: the policy waits until they report the new folder."""

import aiohttp
import msgspec

from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.training.policies.remote.endpoint import Endpoint
from plimsoll.training.policies.remote.protocol import Target

__all__ = ["PathServer"]

MISSING = "an OpenAI-compatible server lists its models there"


class _Model(msgspec.Struct):
    id: str
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class PathServer:
    """One server, which reports the folder that it serves as the `root` of a model.

    Its operator decides when and how it loads the folder, and about requests in flight.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None) -> None:
        self._endpoint = Endpoint(http, url, key, missing=MISSING)

    @property
    def url(self) -> str:
        return self._endpoint.url

    @property
    def stuck(self) -> str:
        return self._endpoint.stuck

    async def load(self, target: Target) -> None:
        deviation = await self.deviation(target)
        if deviation is not None:
            message = f"the policy at {self.url} serves {deviation}, not {target.folder}"
            raise UpstreamFailure("busy", message, retryable=True)

    async def deviation(self, target: Target) -> str | None:
        models = await self._endpoint.get("/v1/models", _Models)
        roots = [model.root or model.id for model in models.data]
        if target.folder is None or str(target.folder) in roots:
            return None
        return ", ".join(roots) or "nothing"
