"""Parts of the tests of `OpenAIPolicy`: numbered weights, and requests to replicas."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import torch
from safetensors.torch import load_file
from weight_stand_in import MARK, SGLangStandIn, StandIn, Token, VLLMStandIn, serving

from plimsoll.core.versions import Version
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.policies.remote.openai_policy import OpenAIPolicy

__all__ = [
    "KINDS",
    "V",
    "ask",
    "ask_slowly",
    "entered",
    "hurry",
    "replicas",
    "until",
    "weights_of",
    "well",
]

KINDS: dict[Any, type[StandIn]] = {"vllm": VLLMStandIn, "sglang": SGLangStandIn}


def V(number: int) -> Version:  # noqa: N802
    return Version(0, number)


def weights_of(base: Path, number: int) -> Weights:
    """Weights that stand-ins read this number from."""
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
    """Answers of 60 tokens that are under way at every server until `hurry` ends them."""
    for server in servers:
        server.pace = 0.3
    tasks = [
        asyncio.create_task(ask(server, f"p{index}", 60))
        for server in servers
        for index in range(count)
    ]
    await until(lambda: all(len(server.running) == count for server in servers))
    return tasks


def hurry(servers: Sequence[StandIn]) -> None:
    for server in servers:
        server.pace = 0.001


@asynccontextmanager
async def entered(
    servers: Sequence[StandIn], folder: Path, **options: Any
) -> AsyncGenerator[OpenAIPolicy]:
    """A policy on stand-ins that serve meanwhile. It does not watch unless it is asked to."""
    options = {"watch_seconds": 3600.0, "update_seconds": 60.0, **options}
    async with serving(*servers):
        urls = [server.url for server in servers]
        async with OpenAIPolicy(urls, folder, **options) as policy:
            yield policy


async def until(what: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if what():
                return
            await asyncio.sleep(0.002)


def replicas(kind: str, count: int = 3) -> list[StandIn]:
    return [KINDS[kind]() for _ in range(count)]


def well(servers: Sequence[StandIn]) -> bool:
    """Whether all of them generate, and none was asked for what it must not be."""
    return not any(server.paused or server.wrongs for server in servers)
