"""The open connections of one socket that listens in a sandbox. One task serves each."""

import asyncio
import logging

from plimsoll.sandboxes.protocol import OnConnection

__all__ = ["Connections"]

log = logging.getLogger(__name__)

_END_SECONDS = 5.0
MAX_CONNECTIONS = 512
"""The most open connections. Each costs this process descriptors and memory, and its client
nothing."""


class Connections:
    """Runs `on_connection` for each connection. An exception ends that connection only."""

    def __init__(self, on_connection: OnConnection) -> None:
        self._on_connection = on_connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._full = False
        """Whether the last connection was over the limit."""

    def start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection. It is reset if it is over the limit, or if `close` was called."""
        full = len(self._tasks) >= MAX_CONNECTIONS
        if full and not self._full:
            log.warning(
                "a sandbox has %d open connections; further ones are reset", len(self._tasks)
            )
        self._full = full
        if full or self._closed:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._on_connection(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        except ConnectionError as error:
            log.debug("a connection from a sandbox was lost: %s", error)
        except Exception:
            log.exception("serving a connection from a sandbox failed")
        finally:
            writer.close()

    async def close(self) -> None:
        """Reset every connection, and wait until the tasks that serve them have ended."""
        self._closed = True
        current = asyncio.current_task()
        others = [task for task in self._tasks if task is not current]
        for task in others:
            task.cancel()
        if others:
            _, stuck = await asyncio.wait(others, timeout=_END_SECONDS)
            if stuck:
                log.warning("%d connections from a sandbox ignore their cancellation", len(stuck))
