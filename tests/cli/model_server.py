"""A server of a model with updatable weights, with the endpoints that vLLM documents.

    python model_server.py MODEL PORT

It generates with the weights of the folder that it loaded last, and reports no versions of its
tokens. `GET /norms` returns the norm of each tensor that it loaded last.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from plimsoll.core.versions import Version
from plimsoll.training.policies.local.torch_policy import TorchPolicy
from plimsoll.training.policies.protocol import Weights


class Server:
    def __init__(self, policy: TorchPolicy, http: aiohttp.ClientSession, base: Path) -> None:
        self._policy = policy
        self._http = http
        self._base = base
        self._label = "default"
        self._not_paused = asyncio.Event()
        self._not_paused.set()
        self._loads = 0
        self._norms: dict[str, float] = {}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path:
            case "POST", "/pause":
                self._not_paused.clear()
                return web.json_response({"status": "paused"})
            case "POST", "/resume":
                self._not_paused.set()
                return web.json_response({"status": "resumed"})
            case "POST", "/collective_rpc":
                asked = await request.json()
                assert asked["method"] == "reload_weights"
                await self._load(asked["kwargs"]["weights_path"])
                return web.json_response({"results": [None]})
            case "POST", "/reset_prefix_cache":
                return web.Response()
            case "POST", "/update_weight_version":
                self._label = (await request.json())["new_version"]
                return web.json_response({"success": True, "new_version": self._label})
            case "GET", "/weight_info":
                return web.json_response({"weight_version": self._label})
            case "GET", "/norms":
                return web.json_response(self._norms)
            case _:
                return await self._pass_on(request)

    async def _load(self, folder: str) -> None:
        assert not self._not_paused.is_set(), "weights were loaded while the server was not paused"
        loaded: PreTrainedModel = await asyncio.to_thread(
            AutoModelForCausalLM.from_pretrained,
            folder,  # pyright: ignore
        )
        tensors: dict[str, Tensor] = dict(loaded.named_parameters())
        self._loads += 1
        await self._policy.publish(Weights(tensors, self._base), Version(0, self._loads))
        self._norms = {name: float(tensor.norm()) for name, tensor in tensors.items()}

    async def _pass_on(self, request: web.BaseRequest) -> web.Response:
        await self._not_paused.wait()
        url = self._policy.urls[0].removesuffix("/v1") + request.path
        headers = {"Authorization": f"Bearer {self._policy.key}"}
        body = await request.read()
        async with self._http.request(
            request.method, url, data=body or None, headers=headers
        ) as response:
            content = await response.read()
        if response.content_type != "application/json":  # /health has no body
            return web.Response(body=content, status=response.status)
        answer: dict[str, Any] = json.loads(content)
        for choice in answer.get("choices", []):
            choice.pop("token_versions", None)
        return web.json_response(answer, status=response.status)


async def main(model: str, port: str) -> None:
    async with (
        TorchPolicy(Path(model)) as policy,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
    ):
        server = Server(policy, http, Path(model))
        runner = web.ServerRunner(web.Server(server.handle, handler_cancellation=True))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(port)).start()
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
