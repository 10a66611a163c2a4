"""Removes the folders of closed sandboxes, so that no trial waits for the disk.

A folder that waits here is named after its owner. What a killed process left to be removed is
therefore known to be its own, and goes at the next start.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plimsoll.core.waiting import to_the_end
from plimsoll.sandboxes.removal import remove_folder

__all__ = ["Remover"]

_log = logging.getLogger(__name__)

_AT_ONCE = 2
_MOST_WAITING = 64
"""With so many folders waiting, the next close waits too: the disk is what limits the run."""
_NICENESS = 5


class Remover:
    """`is_short` says whether the disk is short of room: then a folder is waited for."""

    def __init__(self, warn: Callable[[str], None], is_short: Callable[[], bool]) -> None:
        self._warn = warn
        self._is_short = is_short
        self._threads = ThreadPoolExecutor(
            _AT_ONCE, thread_name_prefix="plimsoll-remover", initializer=_give_way
        )
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def backlog(self) -> int:
        """Folders that are not removed yet."""
        return len(self._waiting)

    async def remove(self, folder: Path) -> None:
        """Have a folder removed, which is not waited for unless there is a reason to."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._remove, folder)
        self._waiting.add(work)
        work.add_done_callback(self._waiting.discard)
        if self._is_short():
            await asyncio.wait([work])
        while len(self._waiting) > _MOST_WAITING:
            await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)

    async def drain(self) -> None:
        """Wait until all folders are removed."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def close(self) -> None:
        """The same, and end the threads."""
        await to_the_end(self.drain())
        self._threads.shutdown()

    def _remove(self, folder: Path) -> None:
        try:
            remove_folder(folder)
        except OSError as error:
            _log.warning("%s is left: %s", folder, error)
            self._warn(
                f"folders of closed sandboxes are left in {folder.parent}: {error.strerror}; "
                "mend that, then run plimsoll clean"
            )


def _give_way() -> None:
    """On Linux each thread has a niceness of its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
