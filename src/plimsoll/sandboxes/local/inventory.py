"""The sandboxes in a home of the local backend, those of other processes too."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.resources import list_sandboxes, remove_sandbox
from plimsoll.sandboxes.reaper import Resource

__all__ = ["LocalInventory"]


class LocalInventory:
    """Lists and removes; layers and bases are kept, whoever made them."""

    name = "local"

    def __init__(self, home: Home) -> None:
        self._home = home

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def items(self) -> Sequence[Resource]:
        try:
            return await asyncio.to_thread(list_sandboxes, self._home)
        except OSError as error:
            raise SandboxUnavailable(
                f"{error.filename or self._home.path} cannot be read: {error.strerror}"
            ) from None

    async def remove(self, item: Resource) -> None:
        try:
            await asyncio.to_thread(remove_sandbox, self._home, item)
        except OSError as error:
            raise SandboxUnavailable(
                f"{error.filename or item.id} cannot be removed: {error.strerror}"
            ) from None
