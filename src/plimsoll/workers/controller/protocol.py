"""`Workers`: the slots that a scheduler gives tickets to."""

from collections.abc import Iterable
from types import TracebackType
from typing import Never, Protocol, Self

from plimsoll.core.versions import Version
from plimsoll.workers.controller.roster import WorkerStatus
from plimsoll.workers.controller.sandbox_reports import SandboxReports
from plimsoll.workers.messages import Kind, Order, Result

__all__ = ["Workers"]


class Workers(Protocol):
    """An async context manager: leaving it cancels running tickets and ends the workers."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @property
    def free(self) -> int:
        """Free slots."""
        ...

    @property
    def slots(self) -> int:
        """All slots, free or not."""
        ...

    @property
    def reports(self) -> SandboxReports:
        """Warnings and sandbox timings of all workers, dead ones included."""
        ...

    @property
    def phases(self) -> dict[str, str]:
        """The phase of each running ticket, where known."""
        ...

    @property
    def waiting(self) -> str:
        """A message about workers that have no host yet; empty if there are none."""
        ...

    def status(self) -> list[WorkerStatus]: ...

    async def run(self, order: Order) -> Result:
        """Run a ticket. Never raises for a failed trial or a dead worker: those are void."""
        ...

    def cancel(self, ticket: str, reason: str) -> None:
        """Cancel a ticket; `run` returns its result, void and cancelled."""
        ...

    def expect(self, kinds: Iterable[Kind]) -> None:
        """Announce the next orders, without those given to `run`. Replaces the previous call."""
        ...

    def set_version(self, version: Version) -> None: ...

    def set_paused(self, paused: bool, *, drains: bool = False) -> None: ...

    async def wait_ready(self) -> None:
        """Wait for the first worker. Raises `WorkerError` if none can start."""
        ...

    async def failed(self) -> Never:
        """Wait until workers cannot be kept alive, and raise the `WorkerError`."""
        ...

    async def drain(self, grace: float) -> None:
        """Take no more tickets, cancel the running ones after `grace` seconds, end the workers."""
        ...
