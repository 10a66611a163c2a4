"""How many sandboxes of a backend are alive, as far as this process can see."""

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, OnOutput, Sandbox, SandboxSpec

__all__ = ["CountingBackend"]


class CountingBackend:
    """A backend whose sandboxes are counted until nobody has them any more."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sandboxes = weakref.WeakSet[Sandbox]()

    @property
    def alive(self) -> int:
        return len(self._sandboxes)

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def warnings(self) -> Sequence[str]:
        return self._backend.warnings

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._backend.__aexit__(exc_type, exc, traceback)

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._backend.build(source, on_output=on_output)

    async def create(self, image: Image, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._backend.create(image, spec)
        self._sandboxes.add(sandbox)
        return sandbox
