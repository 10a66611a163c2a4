"""The entry point of a worker process. Its argument is the pid of the process that starts it.

Credentials come by standard input: other users can read arguments.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys

import msgspec

from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.worker.memory import keep_freed
from plimsoll.workers.worker.worker import Worker

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run a worker and return its exit code."""
    keep_freed()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        credentials = msgspec.json.decode(sys.stdin.buffer.read(), type=Credentials)
    except msgspec.DecodeError as error:
        print(f"a worker is started by its run, with its credentials: {error}", file=sys.stderr)
        return 2
    return asyncio.run(_work(credentials, parent=int(sys.argv[1])))


async def _work(credentials: Credentials, parent: int) -> int:
    worker = Worker(credentials)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, worker.terminate)
    loop.add_signal_handler(signal.SIGHUP, worker.orphan)
    _die_with_parent(parent)
    return await worker.run()


def _die_with_parent(parent: int) -> None:
    """Get SIGHUP when the parent dies, even if it died just before this call.

    Without prctl, the broken connection ends the worker.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
    # A Ray actor may die while this process is being started, and its run live on: the run has
    # forgotten this worker then, and would leave it without an answer.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGHUP)


if __name__ == "__main__":
    sys.exit(main())
