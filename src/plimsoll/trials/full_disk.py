"""Full disks of a trial. If the disk was full, a failure says nothing about the agent.

A full disk is detected by inspecting it (`SandboxStatus.full_disk`), never from the output of an
agent or a test, which could be forged. The output is kept as evidence.
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

__all__ = ["FullDiskCheck"]

_MESSAGE = "No space left on device"


class FullDiskCheck:
    """Tracks full disks from its creation on. A full disk in one step affects all later steps."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._full = ""

    def update(self, status: SandboxStatus) -> None:
        full = status.full_disk
        if full is not None and full.at >= self._since:
            self._full = full.why

    async def check(self, sandbox: Sandbox) -> None:
        self.update(await sandbox.status())

    def explain(self, error: PlimsollError) -> PlimsollError:
        """Return the error of the trial: the full disk, if it explains this error."""
        if not self._full or not isinstance(error, (AgentError, SetUpError, TransferError)):
            return error
        if isinstance(error, NoRoom) and error.named:
            return error
        return SandboxUnavailable(f"{self._full}; {error}")

    async def judge(self, verdict: Verdict, best: float, record: StepRecord) -> Verdict:
        """Void a verdict if the disk was full. The best possible reward is always valid."""
        if isinstance(verdict, Graded) and verdict.reward >= best:
            return verdict
        messages = await asyncio.to_thread(lambda: tuple(_messages(record)))
        if self._full:
            return Void(
                Cause.SANDBOX,
                self._full,
                (*_original_verdict(verdict), *messages, *verdict.evidence),
                verdict.ending,
            )
        if isinstance(verdict, Graded):
            return replace(verdict, evidence=(*verdict.evidence, *messages))
        return verdict


def _original_verdict(verdict: Verdict) -> Iterator[Evidence]:
    if isinstance(verdict, Graded):
        yield Evidence(f"graded {verdict.reward:g}, which was not used")
    else:
        yield Evidence(f"else void: {verdict.cause}, {verdict.reason}")


def _messages(record: StepRecord) -> Iterator[Evidence]:
    for where in record.find_output(_MESSAGE):
        yield Evidence(_MESSAGE, where)
