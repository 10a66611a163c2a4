"""Removes the folders of closed sandboxes in the background, so that no trial waits for the disk.

A queued folder carries the name of its owner. The next start therefore recognizes and removes the
folders that a killed process left behind.
"""

import asyncio
import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxError
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["RemovalQueue"]

_log = logging.getLogger(__name__)

_THREADS = 2
_MAX_QUEUED = 64
"""Backpressure: with so many folders queued, the next close waits."""
_NICENESS = 5
_STAGE_SECONDS = 30.0
"""The time for the cause of a failed staging to pass, for example exhausted descriptors."""
_POLL_SECONDS = 0.05


class RemovalQueue:
    """Removes folders in threads. While the disk is nearly full, `remove` waits."""

    def __init__(self, warn: Callable[[str], None], is_disk_low: Callable[[], bool]) -> None:
        self._warn = warn
        self._is_disk_low = is_disk_low
        self._threads = ThreadPoolExecutor(
            _THREADS, thread_name_prefix="plimsoll-remover", initializer=_lower_priority
        )
        self._queued: set[asyncio.Future[None]] = set()

    async def remove(self, folder: Path) -> None:
        """Queue a folder for removal. Waits if the disk is nearly full or the queue is long."""
        work = self._queue(functools.partial(self._remove, folder))
        if self._is_disk_low():
            await asyncio.wait([work])
        while len(self._queued) > _MAX_QUEUED:
            await asyncio.wait(self._queued, return_when=asyncio.FIRST_COMPLETED)

    def remove_later(self, folder: Path, stage: Callable[[], Path]) -> None:
        """Queue a folder that cannot be staged for removal now. `stage` is tried until it works."""
        self._queue(functools.partial(self._stage_and_remove, folder, stage))

    async def drain(self) -> None:
        """Wait until all folders are removed."""
        while self._queued:
            await asyncio.wait(self._queued)

    async def close(self) -> None:
        """Drain the queue and end the threads."""
        await run_to_completion(self.drain())
        self._threads.shutdown()

    def _queue(self, work: Callable[[], None]) -> "asyncio.Future[None]":
        queued = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._queued.add(queued)
        queued.add_done_callback(self._queued.discard)
        return queued

    def _stage_and_remove(self, folder: Path, stage: Callable[[], Path]) -> None:
        deadline = time.monotonic() + _STAGE_SECONDS
        while True:
            try:
                folder = stage()
                break
            except SandboxError as error:  # a process does not die: its files stay
                self._warn(str(error))
                return
            except OSError as error:
                if time.monotonic() > deadline:  # a process may be alive: its files stay
                    self._warn_of(folder, error)
                    return
                time.sleep(_POLL_SECONDS)
        self._remove(folder)

    def _remove(self, folder: Path) -> None:
        try:
            remove_folder(folder)
        except OSError as error:
            self._warn_of(folder, error)

    def _warn_of(self, folder: Path, error: OSError) -> None:
        _log.warning("%s could not be removed: %s", folder, error)
        self._warn(
            f"folders of closed sandboxes are left in {folder.parent}: {error.strerror}; "
            "fix the cause, then run plimsoll clean"
        )


def _lower_priority() -> None:
    """Lower the priority of this thread: on Linux, niceness is per thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
