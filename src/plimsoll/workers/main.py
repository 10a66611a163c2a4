"""A worker's process. Its invitation comes by standard input: arguments can be read by others."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys

import msgspec

from plimsoll.workers.engines.protocol import Invitation
from plimsoll.workers.memory import keep_freed
from plimsoll.workers.worker import Worker

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Live as a worker, and end as its run wants."""
    keep_freed()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        invitation = msgspec.json.decode(sys.stdin.buffer.read(), type=Invitation)
    except msgspec.DecodeError as error:
        print(f"a worker is started by its run, with an invitation: {error}", file=sys.stderr)
        return 2
    os.environ.update(invitation.environment)
    return asyncio.run(_work(invitation))


async def _work(invitation: Invitation) -> int:
    worker = Worker(invitation)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, worker.terminate)
    loop.add_signal_handler(signal.SIGHUP, worker.orphan)
    _die_with_parent()
    return await worker.run()


def _die_with_parent() -> None:
    """A signal when whoever started it dies; where there is no such thing, its line breaks."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
