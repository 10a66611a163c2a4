"""A policy server that can pause, hang and go down, and runs of an agent that uses it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from helpers import HOST, write_task_folder
from plimsoll.config.file import Config

__all__ = ["PausingPolicy", "asking_config"]

GRADE = "test -e /app/done && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"


class PausingPolicy:
    """Has an agent create a file, then submits."""

    def __init__(self, command: str = "touch /app/done") -> None:
        self.answers = asyncio.Event()
        """While cleared, requests of any kind are accepted and not answered."""
        self.answers.set()
        self.held = 0
        """Number of requests that wait for it."""
        self.seeds: list[int | None] = []
        """Seeds of the first requests of agents."""
        self._command = command
        self._port = 0
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> "PausingPolicy":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        server = web.Server(self._handle, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop the server: connections are refused from now on."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        self.held += 1
        try:
            await self.answers.wait()
        finally:
            self.held -= 1
        if request.path != "/v1/chat/completions":
            return web.json_response({"object": "list", "data": [{"id": "m"}]})
        asked = msgspec.json.decode(await request.read())
        return web.json_response(self._answer(asked))

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        messages: Sequence[dict[str, Any]] = asked["messages"]
        is_first = not any(message["role"] == "assistant" for message in messages)
        if is_first and "seed" in asked:
            self.seeds.append(asked["seed"])
        text = f"```bash\n{self._command}\n```" if is_first else "Done."
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 3}
        return {"id": "x", "model": "m", "choices": [choice], "usage": usage}


def asking_config(
    folder: Path, server: PausingPolicy, *, seconds: float = 60.0, **tables: dict[str, object]
) -> Config:
    """A config whose shell agent runs one task at a time, with `seconds` for each."""
    write_task_folder(
        folder / "tasks" / "touch",
        {
            "instruction.md": "Make the file /app/done.\n",
            "environment/Dockerfile": HOST,
            "tests/test.sh": GRADE,
            "solution/solve.sh": "touch /app/done\n",
        },
        f"[agent]\ntimeout_sec = {seconds}\n",
    )
    run = {"agent": "shell", "group_size": 1, "batch_groups": 1, "steps": 2, "canary_every": 0}
    given: dict[str, dict[str, object]] = {
        "run": {"tasks": str(folder / "tasks"), **run, **tables.pop("run", {})},
        "policy": {"urls": [server.url], "model": "m", **tables.pop("policy", {})},
        "workers": {"concurrency": 1, "grace_seconds": 1.0, **tables.pop("workers", {})},
        "local": {"home": str(folder / "home")},
    }
    return Config.model_validate({**given, **tables})
