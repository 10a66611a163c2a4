"""Waiting for a condition."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until `condition()` is true. Raises `AssertionError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(0.005)
