"""A sandbox backend around a real one, with delays and errors, that records what it did.

async with LocalBackend(LocalOptions()) as real:
    backend = FaultyBackend(real)
    backend.start_errors.append(SandboxUnavailable("no space"))  # the next start fails
    backend.close_delay = 0.5
    ...
    assert backend.max_alive <= 4
"""

import asyncio
from collections.abc import Sequence
from typing import Self

from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, OnOutput, Sandbox, SandboxSpec

__all__ = ["FaultyBackend", "FaultySandbox", "ResettableSandbox"]


class FaultySandbox:
    """A real sandbox with a close that is recorded, and may be slow or fail."""

    def __init__(self, sandbox: Sandbox, backend: "FaultyBackend") -> None:
        self._sandbox = sandbox
        self._backend = backend

    def __getattr__(self, name: str) -> object:
        return getattr(self._sandbox, name)

    async def close(self) -> None:
        await asyncio.sleep(self._backend.close_delay)
        await self._sandbox.close()
        self._backend.alive.discard(self._sandbox.id)
        if self._backend.close_error is not None:
            raise self._backend.close_error


class ResettableSandbox(FaultySandbox):
    """A sandbox whose reset empties /work, or reports the next doubt of the backend."""

    async def baseline(self) -> int:
        self._backend.baselines += 1
        return 1

    async def reset(self) -> str:
        self._backend.resets += 1
        await asyncio.sleep(self._backend.reset_delay)
        if self._backend.doubts:
            return self._backend.doubts.pop(0)
        await self._sandbox.kill_all()
        await self._sandbox.empty("/work")
        return ""


class FaultyBackend:
    """Faults and records of one backend. The caller enters and exits the real backend."""

    def __init__(self, backend: Backend, *, resettable: bool = False) -> None:
        self.start_delay = 0.0
        self.close_delay = 0.0
        self.reset_delay = 0.0
        self.start_errors: list[Exception] = []
        """Errors of the next starts, in order."""
        self.close_error: Exception | None = None
        """The error of every close."""
        self.doubts: list[str] = []
        """Results of the next resets: the reasons why a sandbox is not clean."""
        self.started: list[SandboxSpec] = []
        self.alive: set[str] = set()
        """The ids of sandboxes that are not closed."""
        self.max_alive = 0
        """The largest number of sandboxes at a time, including those that were starting."""
        self.baselines = 0
        self.resets = 0
        self._starting = 0
        self._backend = backend
        self._kind = ResettableSandbox if resettable else FaultySandbox

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def warnings(self) -> Sequence[str]:
        return self._backend.warnings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._backend.build(source, on_output=on_output)

    async def create(self, image: Image, spec: SandboxSpec) -> FaultySandbox:
        self.started.append(spec)
        self._starting += 1
        self.max_alive = max(self.max_alive, len(self.alive) + self._starting)
        try:
            await asyncio.sleep(self.start_delay)
            if self.start_errors:
                raise self.start_errors.pop(0)
            sandbox = await self._backend.create(image, spec)
            self.alive.add(sandbox.id)
        finally:
            self._starting -= 1
        return self._kind(sandbox, self)
