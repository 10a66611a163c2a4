"""Small servers that take weights, with the endpoints that vLLM and SGLang document.

Weights are one number, read from the folder that a server loads. Every token encodes the weights
that generated it and those of its cached context, so that answers show stale weights and caches.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiohttp import web
from safetensors import safe_open

__all__ = ["Fault", "SGLangStandIn", "StandIn", "Token", "VLLMStandIn", "read_number", "serving"]

Fault = int | Literal["hang", "drop", "none"]
MARK = "model.norm.weight"
"""The tensor that holds the number."""


def read_number(folder: str) -> int:
    with safe_open(Path(folder) / "model.safetensors", "pt") as file:  # pyright: ignore
        return int(file.get_tensor(MARK)[0])


@dataclass(frozen=True)
class Token:
    weights: int
    context: int
    """The weights that computed its cached context."""

    @property
    def id(self) -> int:
        return self.weights * 1000 + self.context

    @classmethod
    def of(cls, id: int) -> "Token":
        return cls(*divmod(id, 1000))


@dataclass(eq=False)
class _Running:
    prompt: str
    context: int | None = None
    tokens: list[int] = field(default_factory=list[int])
    aborted: bool = False


class StandIn:
    """The common parts of both kinds: generation, faults, start and stop."""

    def __init__(self, number: int = 0) -> None:
        self.initial = number
        self.number = number
        self.label = "default"
        self.url = ""
        self.key = ""
        self.pace = 0.005
        """Seconds per token."""
        self.loads = asyncio.Event()
        """A load of weights waits for this, which is set unless a test clears it."""
        self.loads.set()
        self.reported_version: str | None = None
        """The version that it reports instead of its own."""
        self.calls: list[str] = []
        self.violations: list[str] = []
        """Calls that would break a real server, or make it answer wrongly."""
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.delays: dict[str, float] = {}
        """Seconds before a request is handled, by route."""
        self.admits = asyncio.Event()
        self.steps = asyncio.Event()
        self.running: set[_Running] = set()
        self._cache: dict[str, int] = {}
        self._runner: web.ServerRunner | None = None
        self._port = 0
        self._fresh()

    @property
    def paused(self) -> bool:
        return not (self.admits.is_set() and self.steps.is_set())

    async def start(self) -> None:
        """Start, or start again, with the initial weights."""
        self._fresh()
        self._runner = web.ServerRunner(
            web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def _fresh(self) -> None:
        self.number, self.label = self.initial, "default"
        self._cache.clear()
        self.admits.set()
        self.steps.set()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if path != "/v1/chat/completions":
            self.calls.append(path)
        fault = self.faults[path].popleft() if self.faults[path] else "none"
        if fault != "none":
            if fault == "hang":
                await asyncio.Event().wait()
            if fault == "drop":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            assert isinstance(fault, int)
            headers = {"Location": "/health"} if fault == 302 else None
            return web.json_response({"error": "out of order"}, status=fault, headers=headers)
        await asyncio.sleep(self.delays.get(path, 0.0))
        body = await request.content.read()
        data: dict[str, Any] = msgspec.json.decode(body) if body else {}
        if path == "/v1/chat/completions":
            return await self._complete(data)
        if path == "/v1/models":
            return web.json_response({"data": [self.model_card()]})
        handler = self.routes().get((request.method, path))
        if handler is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        # A real server continues its work when the client disconnects.
        return await asyncio.shield(asyncio.ensure_future(handler({**request.query, **data})))

    def model_card(self) -> dict[str, object]:
        return {"id": "m", "root": "first", "max_model_len": 4096}

    def routes(
        self,
    ) -> dict[tuple[str, str], Callable[[dict[str, Any]], Awaitable[web.Response]]]:
        return {}

    async def _complete(self, body: dict[str, Any]) -> web.Response:
        await self.admits.wait()
        one = _Running(prompt=str(body["messages"][-1]["content"]))
        self.running.add(one)
        try:
            while len(one.tokens) < int(body.get("max_tokens") or 8) and not one.aborted:
                await self._step(one)
        finally:
            self.running.discard(one)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": " ".join(map(str, one.tokens))},
            "finish_reason": "abort" if one.aborted else "length",
            "token_ids": one.tokens,
            "logprobs": {"content": [{"token": str(t), "logprob": -0.5} for t in one.tokens]},
        }
        usage = {"prompt_tokens": 1, "completion_tokens": len(one.tokens)}
        body = {"id": "1", "choices": [choice], "usage": usage, "prompt_token_ids": [1]}
        return web.json_response(body)

    async def _step(self, one: _Running) -> None:
        await self.steps.wait()
        if one.context is None:
            one.context = self._cache.setdefault(one.prompt, self.number)
        one.tokens.append(Token(self.number, one.context).id)
        await asyncio.sleep(self.pace)

    async def _load(self, path: str) -> web.Response | None:
        try:
            number = read_number(path)
        except (OSError, FileNotFoundError) as error:
            return web.json_response({"success": False, "message": str(error)}, status=400)
        if self.running and self.steps.is_set():
            self.violations.append("weights were loaded while it generated")
        await self.loads.wait()
        self.number = number
        return None

    async def _idle(self) -> None:
        while True:
            if not self.running:
                return
            await asyncio.sleep(0.001)


class VLLMStandIn(StandIn):
    """vLLM with VLLM_SERVER_DEV_MODE=1, unless `dev_mode` is false."""

    dev_mode = True

    def routes(self):
        if not self.dev_mode:
            return {}
        return {
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("GET", "/is_paused"): self._is_paused,
            ("POST", "/collective_rpc"): self._collective_rpc,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("POST", "/update_weight_version"): self._update_weight_version,
            ("GET", "/weight_info"): self._weight_info,
        }

    async def _pause(self, body: dict[str, Any]) -> web.Response:
        self.admits.clear()
        match body.get("mode", "abort"):
            case "keep":
                pass  # keeps the cache: the documentation contradicts itself
            case "wait":
                await self._idle()
                self._cache.clear()
            case _:
                for one in self.running:
                    one.aborted = True
                self._cache.clear()
        if not self.admits.is_set():  # it may have been resumed meanwhile
            self.steps.clear()
        return web.json_response({"status": "paused"})

    async def _resume(self, _body: dict[str, Any]) -> web.Response:
        self.admits.set()
        self.steps.set()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, _body: dict[str, Any]) -> web.Response:
        return web.json_response({"is_paused": self.paused})

    async def _collective_rpc(self, body: dict[str, Any]) -> web.Response:
        if body["method"] != "reload_weights":
            return web.json_response({"detail": "no such method"}, status=400)
        failed = await self._load(body["kwargs"]["weights_path"])
        return failed or web.json_response({"results": [None]})

    async def _reset_prefix_cache(self, body: dict[str, Any]) -> web.Response:
        if not self.running or body.get("reset_running_requests") == "true":
            self._cache.clear()
            for one in self.running:
                one.context = None
        return web.Response()

    async def _update_weight_version(self, body: dict[str, Any]) -> web.Response:
        self.label = body["new_version"]
        return web.json_response({"success": True, "new_version": self.label})

    async def _weight_info(self, _body: dict[str, Any]) -> web.Response:
        return web.json_response({"weight_version": self.reported_version or self.label})


class SGLangStandIn(StandIn):
    flushes_retracted = True
    """True if the cache can be flushed while retracted requests wait."""

    def routes(self):
        return {
            ("POST", "/pause_generation"): self._pause_generation,
            ("POST", "/continue_generation"): self._continue_generation,
            ("POST", "/flush_cache"): self._flush_cache,
            ("POST", "/update_weights_from_disk"): self._update_weights_from_disk,
            ("POST", "/update_weight_version"): self._update_weight_version,
            ("GET", "/model_info"): self._model_info,
        }

    async def _pause_generation(self, body: dict[str, Any]) -> web.Response:
        self.admits.clear()
        self.steps.clear()
        for one in self.running:
            match body.get("mode", "abort"):
                case "retract":
                    one.context = None
                case "abort":
                    one.aborted = True
                case _:
                    pass
        return web.json_response({"status": "ok"})

    async def _continue_generation(self, _body: dict[str, Any]) -> web.Response:
        self.admits.set()
        self.steps.set()
        return web.json_response({"status": "ok"})

    async def _flush_cache(self, _body: dict[str, Any]) -> web.Response:
        return web.Response() if self._flush() else web.Response(text="pending", status=400)

    def _flush(self) -> bool:
        if self.running and not (self.paused and self.flushes_retracted):
            return False
        self._cache.clear()
        return True

    async def _update_weights_from_disk(self, body: dict[str, Any]) -> web.Response:
        if body.get("abort_all_requests"):
            self.violations.append("requests were aborted")
        paused = self.paused
        if not paused:
            self.admits.clear()
            await self._idle()
        try:
            failed = await self._load(body["model_path"])
        finally:
            if not paused:
                self.admits.set()
        if failed:
            return failed
        if body.get("flush_cache", True) and not self._flush():
            self.violations.append("Cache flush failed after updating weights")
        self.label = body.get("weight_version") or self.label
        return web.json_response({"success": True, "message": "Succeeded"})

    async def _update_weight_version(self, body: dict[str, Any]) -> web.Response:
        if body.get("abort_all_requests", True):
            self.violations.append("requests were aborted")
        self.label = body["new_version"]
        return web.json_response({"success": True, "message": "", "new_version": self.label})

    async def _model_info(self, _body: dict[str, Any]) -> web.Response:
        return web.json_response(
            {"model_path": "m", "weight_version": self.reported_version or self.label}
        )


@asynccontextmanager
async def serving(*servers: StandIn) -> AsyncGenerator[None]:
    for server in servers:
        await server.start()
    try:
        yield
    finally:
        for server in servers:
            await server.stop()
