"""vLLM: its endpoints for weight updates, available in development mode."""

from typing import Literal

import aiohttp
import msgspec

from plimsoll.training.policies.remote.endpoint import (
    QUICK_SECONDS,
    Endpoint,
    paused,
    resume_server,
)
from plimsoll.training.policies.remote.protocol import Target, confirm

__all__ = ["VLLM"]

MISSING = (
    "start vLLM with VLLM_SERVER_DEV_MODE=1, in a version that has /pause, /collective_rpc, "
    '/update_weight_version and /weight_info; else set [training] server = "path"'
)
MODES = {"interrupt": "keep", "drain": "wait"}
"""Requests in flight are frozen until /resume, or finish first."""


class _WeightInfo(msgspec.Struct):
    weight_version: str


class VLLM:
    """One server of vLLM."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        key: str | None,
        updating: Literal["interrupt", "drain"],
    ) -> None:
        self._endpoint = Endpoint(http, url, key, missing=MISSING)
        self._mode = MODES[updating]

    @property
    def url(self) -> str:
        return self._endpoint.url

    @property
    def stuck(self) -> str:
        return self._endpoint.stuck

    async def load(self, target: Target) -> None:
        if target.folder is None:
            await self._set_label(target)
            await resume_server(self._resume)
            return
        path = str(target.folder)
        async with paused(self._pause, self._resume):
            await self._endpoint.post(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}
            )
            # The KV cache was computed with the old weights; requests in flight compute theirs
            # again. Pausing clears it too, but not in every version with every mode.
            await self._endpoint.post(
                "/reset_prefix_cache", query={"reset_running_requests": "true"}
            )
            await self._set_label(target)

    async def deviation(self, target: Target) -> str | None:
        info = await self._endpoint.get("/weight_info", _WeightInfo)
        return None if info.weight_version == target.label else info.weight_version

    async def _set_label(self, target: Target) -> None:
        await self._endpoint.post("/update_weight_version", {"new_version": target.label})
        await confirm(self, target)

    async def _pause(self) -> None:
        await self._endpoint.post("/pause", query={"mode": self._mode, "clear_cache": "true"})

    async def _resume(self) -> None:
        await self._endpoint.post("/resume", within=QUICK_SECONDS)
