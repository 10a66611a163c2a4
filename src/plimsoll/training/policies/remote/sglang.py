"""SGLang: weights are loaded from disk and identified by `weight_version`."""

from typing import Any, Literal

import aiohttp
import msgspec

from plimsoll.core.errors import PolicyError
from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.training.policies.remote.endpoint import (
    QUICK_SECONDS,
    Endpoint,
    paused,
    resume_server,
)
from plimsoll.training.policies.remote.protocol import Target, confirm

__all__ = ["SGLang"]

MISSING = (
    "use an SGLang that has /update_weights_from_disk, /pause_generation and /model_info, or set "
    '[training] server = "path"'
)


class _ModelInfo(msgspec.Struct):
    weight_version: str


class _Done(msgspec.Struct):
    success: bool
    message: str = ""


class SGLang:
    """One server of SGLang."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        key: str | None,
        updating: Literal["interrupt", "drain"],
    ) -> None:
        self._endpoint = Endpoint(http, url, key, missing=MISSING)
        self._updating = updating

    @property
    def url(self) -> str:
        return self._endpoint.url

    @property
    def stuck(self) -> str:
        return self._endpoint.stuck

    async def load(self, target: Target) -> None:
        if target.folder is None:
            body = {"new_version": target.label, "abort_all_requests": False}
            await self._post("/update_weight_version", body)
            await resume_server(self._resume)
        elif self._updating == "drain":
            # Without a pause, requests in flight finish first and new ones wait.
            await self._load(target, flush=True)
        else:
            async with paused(self._pause, self._resume):
                # Before the load, not with it: if the cache cannot be flushed, SGLang ends its
                # scheduler after the load.
                await self._flush()
                await self._load(target, flush=False)
        await confirm(self, target)

    async def deviation(self, target: Target) -> str | None:
        info = await self._endpoint.get("/model_info", _ModelInfo)
        return None if info.weight_version == target.label else info.weight_version

    async def _load(self, target: Target, *, flush: bool) -> None:
        body = {
            "model_path": str(target.folder),
            "weight_version": target.label,
            "abort_all_requests": False,
            "flush_cache": flush,
        }
        await self._post("/update_weights_from_disk", body)

    async def _post(self, route: str, body: dict[str, Any]) -> None:
        done = await self._endpoint.post_for(route, body, _Done)
        if not done.success:
            raise PolicyError(f"the policy at {self.url} failed at {route}: {done.message}")

    async def _flush(self) -> None:
        try:
            await self._endpoint.post("/flush_cache", within=QUICK_SECONDS)
        except UpstreamFailure as failure:
            if failure.kind != "bad_request":
                raise
            raise PolicyError(
                f"the policy at {self.url} does not flush its cache while requests are in flight "
                f'({failure}): set [training] updating = "drain"'
            ) from failure

    async def _pause(self) -> None:
        # Requests in flight go back to the queue and compute their cache again.
        await self._endpoint.post("/pause_generation", {"mode": "retract"})

    async def _resume(self) -> None:
        await self._endpoint.post("/continue_generation", {}, within=QUICK_SECONDS)
