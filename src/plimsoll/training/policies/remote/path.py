"""Servers that somebody else gives the weights to: a folder is named, and waited for."""

import aiohttp
import msgspec

from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.training.policies.remote.endpoint import Endpoint
from plimsoll.training.policies.remote.protocol import Target

__all__ = ["PathServer"]

MISSING = "an OpenAI-compatible server tells its models there"


class _Model(msgspec.Struct):
    id: str
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class PathServer:
    """One server, which tells the folder that it serves as the `root` of a model.

    When and how it loads the folder, and what becomes of requests under way, is the business of
    whoever runs it.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None) -> None:
        self._at = Endpoint(http, url, key, missing=MISSING)

    @property
    def url(self) -> str:
        return self._at.url

    @property
    def stuck(self) -> str:
        return self._at.stuck

    async def take(self, target: Target) -> None:
        other = await self.other(target)
        if other is not None:
            message = f"the policy at {self.url} serves {other}, not {target.folder}"
            raise UpstreamFailure("busy", message, again=True)

    async def other(self, target: Target) -> str | None:
        models = await self._at.get("/v1/models", _Models)
        roots = [model.root or model.id for model in models.data]
        if target.folder is None or str(target.folder) in roots:
            return None
        return ", ".join(roots) or "nothing"
