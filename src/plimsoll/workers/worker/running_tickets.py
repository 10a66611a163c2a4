"""The tickets that a worker runs now: begun, given up, and each answered exactly once."""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable

from plimsoll.trials.verdicts import Cause, Void
from plimsoll.workers.faults import verdict_on
from plimsoll.workers.messages import Finished, FromWorker, Taken
from plimsoll.workers.place import Order, Place, Result
from plimsoll.workers.worker.heartbeat import Load

__all__ = ["RunningTickets"]

logger = logging.getLogger(__name__)


class RunningTickets:
    """Runs orders in a place, all on one loop. Whatever becomes of one, its result is sent."""

    def __init__(self, place: Place, load: Load, send: Callable[[FromWorker], None]) -> None:
        self._place = place
        self._load = load
        self._send = send
        self._running: dict[str, asyncio.Task[Result]] = {}
        self._given_up: dict[str, Void] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def take(self, order: Order) -> None:
        """Begin a ticket; one that comes when the worker is leaving goes back at once."""
        if self._load.leaving:
            verdict = Void(Cause.LOST, "its worker was about to end")
            self._send(Finished(Result(ticket=order.ticket, verdict=verdict, seconds=0.0)))
            return
        began = time.monotonic()
        task = asyncio.create_task(self._run(order), name=order.ticket)
        self._running[order.ticket] = task
        self._count()
        task.add_done_callback(lambda done: self._end(order, began, done))

    def cancel(self, ticket: str, verdict: Void) -> None:
        """Give a ticket up. It is answered with this verdict once it has cleaned up."""
        if ticket in self._running and ticket not in self._given_up:
            self._given_up[ticket] = verdict
            self._running[ticket].cancel()

    def cancel_all(self, verdict: Void) -> None:
        for ticket in list(self._running):
            self.cancel(ticket, verdict)

    def group_over(self, group: str) -> None:
        if self._closed:
            return  # Leaving the place ends every group.
        task = asyncio.create_task(self._place.group_over(group))
        self._beside.add(task)
        task.add_done_callback(self._see_done)

    async def wait_empty(self) -> None:
        await self._empty.wait()

    async def close(self, verdict: Void) -> None:
        """Give everything up, and wait until it has cleaned up."""
        self._closed = True
        self.cancel_all(verdict)
        await self._empty.wait()
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    async def _run(self, order: Order) -> Result:
        self._send(Taken(order.ticket))
        try:
            return await self._place.run(order)
        except BaseException as error:
            # What its frames held would otherwise stay until a collection: a cancelled task and
            # its traceback hold each other.
            traceback.clear_frames(error.__traceback__)
            raise

    def _end(self, order: Order, began: float, task: asyncio.Task[Result]) -> None:
        ticket = order.ticket
        del self._running[ticket]
        given_up = self._given_up.pop(ticket, None)
        self._load.ended += 1
        self._count()
        if task.cancelled():
            verdict = given_up or Void(Cause.BUG, "the ticket was cancelled by nobody")
        elif (error := task.exception()) is not None:
            # The boundary: a place promises not to raise.
            logger.error("ticket %s failed\n%s", ticket, "".join(traceback.format_exception(error)))
            verdict = verdict_on(error, order.folder)
        else:
            self._send(Finished(task.result()))
            return
        seconds = time.monotonic() - began
        self._send(Finished(Result(ticket=ticket, verdict=verdict, seconds=seconds)))

    def _count(self) -> None:
        self._load.running = len(self._running)
        if self._running:
            self._empty.clear()
        else:
            self._empty.set()

    def _see_done(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a group's end failed\n%s", "".join(traceback.format_exception(error)))
