"""Whether a trial had room on its disk. Where it had none, what failed says nothing of the agent.

A disk that is full is found so by looking at it (`SandboxStatus.full_disk`), never by what an
agent or a test prints: they could print it without. What they print is kept as evidence.
"""

import asyncio
import time
from collections.abc import Iterator

from msgspec.structs import replace

from plimsoll.core.errors import (
    AgentError,
    NoRoom,
    PlimsollError,
    SandboxUnavailable,
    SetUpError,
    TransferError,
)
from plimsoll.sandboxes.protocol import Sandbox, SandboxStatus
from plimsoll.trials.record import StepRecord
from plimsoll.trials.verdicts import Cause, Evidence, Graded, Verdict, Void

__all__ = ["DiskSpace"]

_SAID = "No space left on device"


class DiskSpace:
    """What is known of it since this was made. A step that lacked it taints those that follow."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._full = ""

    def note(self, status: SandboxStatus) -> None:
        full = status.full_disk
        if full is not None and full.at >= self._since:
            self._full = full.why

    async def look(self, sandbox: Sandbox) -> None:
        self.note(await sandbox.status())

    def blame(self, error: PlimsollError) -> PlimsollError:
        """What a trial ends with that failed with this error."""
        if not self._full or not isinstance(error, (AgentError, SetUpError, TransferError)):
            return error
        if isinstance(error, NoRoom) and error.named:
            return error
        return SandboxUnavailable(f"{self._full}; {error}")

    async def judge(self, verdict: Verdict, best: float, record: StepRecord) -> Verdict:
        """A verdict that holds though the disk may have been full. The best reward does."""
        if isinstance(verdict, Graded) and verdict.reward >= best:
            return verdict
        said = await asyncio.to_thread(lambda: tuple(_said(record)))
        if self._full:
            return Void(
                Cause.SANDBOX,
                self._full,
                (*_unused(verdict), *said, *verdict.evidence),
                verdict.ending,
            )
        if isinstance(verdict, Graded):
            return replace(verdict, evidence=(*verdict.evidence, *said))
        return verdict


def _unused(verdict: Verdict) -> Iterator[Evidence]:
    if isinstance(verdict, Graded):
        yield Evidence(f"graded {verdict.reward:g}, which was not used")
    else:
        yield Evidence(f"else void: {verdict.cause}, {verdict.reason}")


def _said(record: StepRecord) -> Iterator[Evidence]:
    for where in record.places_of(_SAID):
        yield Evidence(_SAID, where)
