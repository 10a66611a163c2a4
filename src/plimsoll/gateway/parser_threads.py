"""Parser threads: decompress and parse large bodies outside the event loop.

A session has at most one body in these threads at a time (`Handlers.parsing`), so no session can
starve the others.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["LARGE_BODY_BYTES", "run_in_thread"]

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BODY_BYTES = 64 << 10
"""Bodies above this size, and all compressed bodies, are parsed in a thread. Parsing the most
messages that fit into a smaller body takes a few tens of milliseconds.
"""

_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="plimsoll-body")


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a parser thread and return its result."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: function(*args, **kwargs))
