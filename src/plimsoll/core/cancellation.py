"""Clean-up that a cancellation does not interrupt."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["run_to_completion"]

_T = TypeVar("_T")


async def run_to_completion(work: Awaitable[_T]) -> _T:
    """Wait until `work` is done, even if this call is cancelled. Then raise the cancellation.

    For clean-up that must not be interrupted. The work needs a time limit of its own.
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
            task.exception()  # marks it as retrieved: the cancellation replaces it
        raise cancelled
    return task.result()
