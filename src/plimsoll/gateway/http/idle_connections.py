"""Idle connections: closes a connection that sends no request within the time limit.

The HTTP library limits the time between two requests of a connection, but not the time before the
first one.
"""

import time
from collections.abc import Iterable

from aiohttp.web_protocol import RequestHandler

__all__ = ["IdleConnections"]

FIRST_REQUEST_SECONDS = 60.0
"""The limit on the time before the first request."""
CONNECT_SECONDS = 2.0
"""The limit on the time between the creation of a connection and its appearance among the server's
open connections.
"""


class IdleConnections:
    """Connections that have not sent a request yet."""

    def __init__(self) -> None:
        self._since: dict[RequestHandler, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: RequestHandler) -> None:
        self._since[connection] = time.monotonic()

    def asked(self, connection: RequestHandler) -> None:
        self._since.pop(connection, None)

    def see_off(self, now: float, connected: Iterable[RequestHandler]) -> None:
        """Close the connections that are over the limit, and forget those that are gone."""
        there = set(connected)
        for connection, since in tuple(self._since.items()):
            late = now - since > FIRST_REQUEST_SECONDS
            if late:
                connection.force_close()
            if late or (connection not in there and now - since > CONNECT_SECONDS):
                del self._since[connection]
