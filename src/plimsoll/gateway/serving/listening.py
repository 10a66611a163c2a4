"""Listens on a port of this host while it is entered."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

__all__ = ["serving"]


@asynccontextmanager
async def serving(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncGenerator[int]:
    """Serves a handler, and gives the port. A client that leaves cancels its handler."""
    runner = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
