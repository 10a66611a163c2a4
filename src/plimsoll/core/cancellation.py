"""Waiting that a cancellation does not cut short."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["run_to_completion"]

_T = TypeVar("_T")


async def run_to_completion(work: Awaitable[_T]) -> _T:
    """Wait until the work is done even if this call is cancelled; the cancellation follows.

    For clean-up that must not be left half done. The work must be bounded by itself.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation comes before it
        raise cancelled
    return task.result()
