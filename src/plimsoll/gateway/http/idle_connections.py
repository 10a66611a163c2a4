"""Connections that nobody has asked anything by yet, and how long they may be that.

The HTTP library bounds the time between two requests of a connection, and not that before the
first one.
"""

import time
from collections.abc import Iterable

from aiohttp.web_protocol import RequestHandler

__all__ = ["IdleConnections"]

FIRST_REQUEST_SECONDS = 60.0
"""For the head of a first request to arrive."""
CONNECT_SECONDS = 2.0
"""For a connection to be among those that are open, once it was made."""


class IdleConnections:
    """The server's ends of such connections."""

    def __init__(self) -> None:
        self._since: dict[RequestHandler, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: RequestHandler) -> None:
        self._since[connection] = time.monotonic()

    def asked(self, connection: RequestHandler) -> None:
        self._since.pop(connection, None)

    def see_off(self, now: float, connected: Iterable[RequestHandler]) -> None:
        """Cut those that are late, and forget those that are gone."""
        there = set(connected)
        for connection, since in tuple(self._since.items()):
            late = now - since > FIRST_REQUEST_SECONDS
            if late:
                connection.force_close()
            if late or (connection not in there and now - since > CONNECT_SECONDS):
                del self._since[connection]
