"""A backend around a real one, with faults and delays at will, that remembers what it did."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, OnOutput, Sandbox, SandboxSpec

__all__ = ["Faulty", "Resetting", "Watched", "until"]


async def until(what: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something is so, and fail where it does not become so in time."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


class Watched:
    """A real sandbox whose close is seen, and may be slow or fail."""

    def __init__(self, sandbox: Sandbox, world: "Faulty") -> None:
        self._sandbox = sandbox
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def close(self) -> None:
        await asyncio.sleep(self._world.close_delay)
        await self._sandbox.close()
        self._world.alive.discard(self._sandbox.id)
        if self._world.close_error is not None:
            raise self._world.close_error


class Resetting(Watched):
    """One with a reset, that empties /work and has the doubts it is told to have."""

    async def baseline(self) -> int:
        self._world.baselines += 1
        return 1

    async def reset(self) -> str:
        self._world.resets += 1
        await asyncio.sleep(self._world.reset_delay)
        if self._world.doubts:
            return self._world.doubts.pop(0)
        await self._sandbox.kill_all()
        await self._sandbox.empty("/work")
        return ""


class Faulty:
    """Entering and leaving it does nothing: the test has entered the real one."""

    def __init__(self, backend: Backend, *, resettable: bool = False) -> None:
        self.start_delay = 0.0
        self.close_delay = 0.0
        self.reset_delay = 0.0
        self.start_errors: list[Exception] = []
        self.close_error: Exception | None = None
        self.doubts: list[str] = []
        self.started: list[SandboxSpec] = []
        self.alive: set[str] = set()
        self.most_alive = 0
        self.baselines = 0
        self.resets = 0
        self._starting = 0
        self._backend = backend
        self._kind = Resetting if resettable else Watched

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def warnings(self) -> Sequence[str]:
        return self._backend.warnings

    async def __aenter__(self) -> "Faulty":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._backend.build(source, on_output=on_output)

    async def create(self, image: Image, spec: SandboxSpec) -> Any:
        self.started.append(spec)
        self._starting += 1
        self.most_alive = max(self.most_alive, len(self.alive) + self._starting)
        try:
            await asyncio.sleep(self.start_delay)
            if self.start_errors:
                raise self.start_errors.pop(0)
            sandbox = await self._backend.create(image, spec)
            self.alive.add(sandbox.id)
        finally:
            self._starting -= 1
        return self._kind(sandbox, self)
