"""An inference engine that generates a given text, one token per character, and a server for it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from plimsoll.core.errors import PolicyError
from plimsoll.core.versions import Version
from plimsoll.gateway.chat_server.inference_engine import (
    AnswerPiece,
    Prompt,
    RequestError,
    SamplingParams,
)
from plimsoll.gateway.chat_server.server import ChatServer, listen

END = 0


class Letters:
    """Renders a conversation as its roles and texts."""

    name = "letters"
    context = 1000

    def __init__(self, answer_text: str = "Hello.") -> None:
        self.answer_text = answer_text
        self.problem = ""
        self.fails_after: int | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.sampling: list[SamplingParams] = []
        self.given_up = 0
        self.rendered: list[list[dict[str, object]]] = []

    async def prompt(self, messages: list[dict[str, object]], tools: list[object] | None) -> Prompt:
        del tools
        self.rendered.append(messages)
        if any(message.get("role") == "robot" for message in messages):
            raise RequestError("no robots")
        text = "".join(f"{message['role']}:{message.get('content')}" for message in messages)
        return Prompt(text, [ord(letter) for letter in text])

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        del prompt, stream
        self.sampling.append(sampling)
        ids = [*map(ord, self.answer_text), END]
        try:
            for at, token in enumerate(ids):
                await self.go_on.wait()
                if at == self.fails_after:
                    raise PolicyError("the device is on fire")
                yield AnswerPiece(
                    text=chr(token) if token else "",
                    ids=[token],
                    logprobs=[-token / 100],
                    versions=[(Version(0, at // 4), 1)],
                    finish=None if token else "stop",
                )
        except (asyncio.CancelledError, GeneratorExit):
            self.given_up += 1
            raise

    def words(self, ids: Sequence[int]) -> list[str]:
        return [chr(token) for token in ids]


class Client:
    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.http = http

    def post(self, path: str = "/v1/chat/completions", **fields: Any) -> Any:
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        return self.http.post(self.url + path, json=body)

    async def ask(self, **fields: Any) -> tuple[int, Any]:
        async with self.post(**fields) as response:
            return response.status, await response.json()

    async def send(self, body: bytes) -> tuple[int, Any]:
        async with self.http.post(f"{self.url}/v1/chat/completions", data=body) as response:
            return response.status, await response.json()


@asynccontextmanager
async def served(engine: Letters, key: str | None = None) -> AsyncIterator[Client]:
    async with listen(ChatServer(engine, key).handle) as port:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with aiohttp.ClientSession(headers=headers) as http:
            yield Client(f"http://127.0.0.1:{port}", http)
