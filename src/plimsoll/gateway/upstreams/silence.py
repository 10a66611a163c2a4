"""How long a stream may say nothing."""

import asyncio

import aiohttp

__all__ = ["Silence"]


class Silence:
    """Fails the reading of a stream from which nothing has come for so many seconds.

    One timer that looks when something last came. The client's own is made anew for each read,
    which costs more than the piece that was read.
    """

    __slots__ = ("_last", "_loop", "_response", "_seconds", "_timer")

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = None
        self._response = response
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def allow(self, seconds: float) -> None:
        """From now on it may last so long."""
        self._timer.cancel()
        self._seconds = seconds
        self._timer = self._loop.call_at(self._last + seconds, self._look)

    def broken(self) -> None:
        """Something came."""
        self._last = self._loop.time()

    def over(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        due = self._last + self._seconds
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
        else:
            said = f"nothing came for {self._seconds:g} s"
            self._response.content.set_exception(aiohttp.SocketTimeoutError(said))
