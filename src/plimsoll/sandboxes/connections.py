"""The connections of one socket that listens in a sandbox, each served by a task."""

import asyncio
import logging

from plimsoll.sandboxes.protocol import OnConnection

__all__ = ["Connections"]

log = logging.getLogger(__name__)

_END_SECONDS = 5.0
MAX_CONNECTIONS = 512
"""Open at once. Each takes files and memory of this process, and costs who opens it nothing."""


class Connections:
    """Runs `on_connection` for each; what that raises ends its own connection only."""

    def __init__(self, on_connection: OnConnection) -> None:
        self._on_connection = on_connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._full = False
        """Whether the last that came was too many."""

    def start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection; one that is too many, or comes after `close`, is cut."""
        full = len(self._tasks) >= MAX_CONNECTIONS
        if full and not self._full:
            log.warning("a sandbox has %d connections open; more are cut", len(self._tasks))
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
        """Cut every connection, and wait for what serves them."""
        self._closed = True
        me = asyncio.current_task()
        others = [task for task in self._tasks if task is not me]
        for task in others:
            task.cancel()
        if others:
            _, deaf = await asyncio.wait(others, timeout=_END_SECONDS)
            if deaf:
                log.warning("%d connections from a sandbox do not end when cancelled", len(deaf))
