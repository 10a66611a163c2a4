"""Parts of the tests of `OpenAIPolicy`: numbered weights, and requests to replicas."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import torch
from safetensors.torch import load_file
from weight_stand_in import MARK, SGLangStandIn, StandIn, Token, VLLMStandIn, serving

from plimsoll.core.versions import Version
from plimsoll.testing.waiting import until
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.policies.remote.openai_policy import OpenAIPolicy

__all__ = [
    "KINDS",
    "V",
    "ask",
    "ask_slowly",
    "healthy",
    "replicas",
    "running_policy",
    "speed_up",
    "weights_of",
]

KINDS: dict[Any, type[StandIn]] = {"vllm": VLLMStandIn, "sglang": SGLangStandIn}


def V(number: int) -> Version:  # noqa: N802
    return Version(0, number)


def weights_of(base: Path, number: int) -> Weights:
    """Weights from which stand-ins read this number."""
    tensors = load_file(base / "model.safetensors")
    tensors[MARK] = torch.full_like(tensors[MARK], float(number))
    return Weights(tensors, base)


async def ask(server: StandIn, prompt: str = "hello", tokens: int = 4) -> list[Token]:
    """The tokens of a whole answer."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    headers = {"Authorization": f"Bearer {server.key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.url}/chat/completions", json=body, headers=headers) as response,
    ):
        answer: dict[str, Any] = await response.json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length", "the request was cut off"
    return [Token.of(id) for id in choice["token_ids"]]


async def ask_slowly(servers: Sequence[StandIn], count: int) -> list[asyncio.Task[list[Token]]]:
    """Start slow answers of 60 tokens at every server. `speed_up` lets them finish."""
    for server in servers:
        server.pace = 0.3
    tasks = [
        asyncio.create_task(ask(server, f"p{index}", 60))
        for server in servers
        for index in range(count)
    ]
    await until(lambda: all(len(server.running) == count for server in servers))
    return tasks


def speed_up(servers: Sequence[StandIn]) -> None:
    for server in servers:
        server.pace = 0.001


@asynccontextmanager
async def running_policy(
    servers: Sequence[StandIn], folder: Path, **options: Any
) -> AsyncGenerator[OpenAIPolicy]:
    """A policy on running stand-ins. It watches them only with a smaller `watch_seconds`."""
    options = {"watch_seconds": 3600.0, "update_seconds": 60.0, **options}
    async with serving(*servers):
        urls = [server.url for server in servers]
        async with OpenAIPolicy(urls, folder, **options) as policy:
            yield policy


def replicas(kind: str, count: int = 3) -> list[StandIn]:
    return [KINDS[kind]() for _ in range(count)]


def healthy(servers: Sequence[StandIn]) -> bool:
    """True if all servers generate, and none received a call that it does not allow."""
    return not any(server.paused or server.violations for server in servers)
