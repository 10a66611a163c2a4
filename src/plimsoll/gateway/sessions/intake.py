"""How many bytes of bodies a session may have on their way at once.

Connections cost a client nothing, and each may send a part of a body and stop: what all of them
hold must have a bound, beside that of each.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

__all__ = ["Intake"]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    size: int
    turn: asyncio.Future[None]


class Intake:
    """Room for so many bytes. Who finds none waits, in the order of coming."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[_Waiting] = deque()

    @property
    def taken(self) -> int:
        return self._most - self._left

    @asynccontextmanager
    async def room(self, size: int) -> AsyncGenerator[None]:
        """All of it before a body is read: bodies that are half read would wait for each other."""
        size = min(size, self._most)
        await self._take(size)
        try:
            yield
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and size <= self._left:
            self._left -= size
            return
        me = _Waiting(size, asyncio.get_running_loop().create_future())
        self._waiting.append(me)
        try:
            await me.turn
        except asyncio.CancelledError:
            if me in self._waiting:
                self._waiting.remove(me)
                self._give(0)  # who came after may need less
            else:
                self._give(size)
            raise

    def _give(self, size: int) -> None:
        self._left += size
        while self._waiting and self._waiting[0].size <= self._left:
            first = self._waiting.popleft()
            self._left -= first.size
            if not first.turn.done():
                first.turn.set_result(None)
