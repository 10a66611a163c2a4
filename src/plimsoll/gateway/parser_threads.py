"""Threads that decompress and parse large bodies, so that the event loop serves everybody else.

A session has at most one body in them at a time (`Presence.heavy`), so no session keeps the
others waiting.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["LARGE_BODY_BYTES", "run_in_thread"]

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BODY_BYTES = 64 << 10
"""Bytes. A larger body, and a compressed one of any size, is read off the loop. The most messages
that fit into less cost the loop a few tens of milliseconds."""

_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="plimsoll-body")


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `function`, called in one of the threads."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: function(*args, **kwargs))
