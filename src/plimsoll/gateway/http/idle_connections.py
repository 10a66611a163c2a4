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

    def received_request(self, connection: RequestHandler) -> None:
        self._since.pop(connection, None)

    def close_expired(self, now: float, connected: Iterable[RequestHandler]) -> None:
        """Close the connections that are over the limit, and forget those that are gone."""
        still_open = set(connected)
        for connection, since in tuple(self._since.items()):
            expired = now - since > FIRST_REQUEST_SECONDS
            if expired:
                connection.force_close()
            if expired or (connection not in still_open and now - since > CONNECT_SECONDS):
                del self._since[connection]
