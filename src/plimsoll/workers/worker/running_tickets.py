"""The running tickets of a worker: each is started once and answered exactly once."""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plimsoll.core.versions import Version
from plimsoll.trials.verdicts import Cause, Void
from plimsoll.trials.voids import void_of
from plimsoll.workers.messages import Finished, Kind, Order, Result, SandboxReport

__all__ = ["Load", "RunningTickets", "TrialRunner"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Load:
    """The load of a worker. Written by its event loop, read by its heartbeat."""

    ended: int = 0
    leaving: bool = False


class TrialRunner(Protocol):
    """Runs orders concurrently on one event loop. An order leaves nothing in memory at its end."""

    async def run(self, order: Order) -> Result:
        """Run a trial. A failed trial has a void verdict; an exception makes the ticket void, too.
        Cancelling cleans up."""
        ...

    def expect(self, kinds: Sequence[Kind]) -> None:
        """Prewarm for orders of these kinds and for no others. Replaces the previous call."""
        ...

    def set_version(self, version: Version) -> None:
        """Set the version that the policy generates with from now on."""
        ...

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        """Announce that the policy is paused for new weights, or resumed: see `Paused`."""
        ...

    def take_report(self) -> SandboxReport | None:
        """Return the report since the last call; None if there is none."""
        ...

    def counts(self) -> dict[str, int]:
        """Count live objects by kind: sandboxes, sessions, trajectories, requests."""
        ...


class RunningTickets:
    """Runs orders concurrently on one event loop and sends the result of each."""

    def __init__(self, runner: TrialRunner, load: Load, send: Callable[[Finished], None]) -> None:
        self._runner = runner
        self._load = load
        self._send = send
        self._running: dict[str, asyncio.Task[Result]] = {}
        self._given_up: dict[str, Void] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def take(self, order: Order) -> None:
        """Start a ticket. A worker that is about to exit returns it as lost."""
        if self._load.leaving:
            verdict = Void(Cause.LOST, "its worker was about to end")
            self._send(Finished(Result(ticket=order.ticket, verdict=verdict, seconds=0.0)))
            return
        began = time.monotonic()
        task = asyncio.create_task(self._run(order), name=order.ticket)
        self._running[order.ticket] = task
        self._empty.clear()
        task.add_done_callback(lambda done: self._end(order, began, done))

    def cancel(self, ticket: str, verdict: Void) -> None:
        """Cancel a ticket. Its result has this verdict and is sent when it has cleaned up."""
        if ticket in self._running and ticket not in self._given_up:
            self._given_up[ticket] = verdict
            self._running[ticket].cancel()

    def cancel_all(self, verdict: Void) -> None:
        for ticket in list(self._running):
            self.cancel(ticket, verdict)

    async def wait_empty(self) -> None:
        await self._empty.wait()

    async def close(self, verdict: Void) -> None:
        """Cancel all tickets and wait until they have cleaned up."""
        self.cancel_all(verdict)
        await self._empty.wait()

    async def _run(self, order: Order) -> Result:
        try:
            return await self._runner.run(order)
        except BaseException as error:
            # A cancelled task and its traceback refer to each other: without this, the objects of
            # its frames would live until the next garbage collection.
            traceback.clear_frames(error.__traceback__)
            raise

    def _end(self, order: Order, began: float, task: asyncio.Task[Result]) -> None:
        ticket = order.ticket
        del self._running[ticket]
        given_up = self._given_up.pop(ticket, None)
        self._load.ended += 1
        if not self._running:
            self._empty.set()
        if task.cancelled():
            verdict = given_up or Void(Cause.BUG, "the ticket was cancelled without a verdict")
        elif (error := task.exception()) is not None:
            # The boundary: an exception of the runner becomes a void verdict.
            verdict = void_of(error, Path(order.folder) if order.folder else None)
            if verdict.cause is Cause.BUG:
                trace = "".join(traceback.format_exception(error))
                logger.error("ticket %s failed\n%s", ticket, trace)
        else:
            self._send(Finished(task.result()))
            return
        seconds = time.monotonic() - began
        self._send(Finished(Result(ticket=ticket, verdict=verdict, seconds=seconds)))
