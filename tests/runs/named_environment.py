"""An environment where task names determine the outcome of trials, and runs in it."""

import asyncio
import contextlib
import hashlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from plimsoll.core.endings import Ending
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.events import Segment
from plimsoll.testing.waiting import until
from plimsoll.trials.policy_usage import PolicyUsage
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void
from plimsoll.workers.messages import (
    EnvironmentOptions,
    Kind,
    Order,
    Result,
    SandboxReport,
)

__all__ = ["START_SECONDS", "USAGE", "NamedEnvironment", "named"]

USAGE = PolicyUsage(turns=2, prompt_tokens=30, answer_tokens=10)
START_SECONDS = 0.25


class NamedEnvironment:
    """Grades by the first word of a task's name, and never starts a sandbox.

    Every trial has the same usage and start time.
    """

    def __init__(self) -> None:
        self._version = FIRST_VERSION

    async def run(self, order: Order) -> Result:
        began = self._version
        verdict = await self._verdict(order)
        return Result(
            ticket=order.ticket,
            verdict=verdict,
            seconds=0.01,
            sandbox_seconds=START_SECONDS,
            segments=(Segment(began, 5), Segment(self._version, 5)),
            trial=secrets.token_hex(8),
            usage=USAGE,
        )

    async def _verdict(self, order: Order) -> Verdict:
        run = Path(order.folder).parent.parent
        match Path(order.task).name.partition("-")[0]:
            case "coin":
                with (run / "names").open("a") as file:
                    file.write(f"{order.name}\n")
                await asyncio.sleep(0.01)
                return _graded(hashlib.sha256(order.ticket.encode()).digest()[0] % 2)
            case "sways":
                await asyncio.sleep(hashlib.sha256(order.ticket.encode()).digest()[1] / 2500)
                return _graded(1)
            case "waits":
                await until((run / "go").exists, 60)
                return _graded(1)
            case "later":
                if order.attempt > 4:  # the trials of the first batch end at once
                    await until((run / "go").exists, 60)
                return _graded(1)
            case "half":
                if "/0." in order.ticket:
                    return Void(Cause.TASK, "the task is broken")
                await asyncio.sleep(600)
                return _graded(1)
            case "down":
                if (run / "go").exists():
                    return _graded(1)
                return Void(Cause.POLICY, "the server does not answer")
            case "void":
                return Void(Cause.GRADER, "the tests did not grade")
            case "lost":
                if not (run / "died").exists():
                    (run / "died").touch()
                    os._exit(7)
                return _graded(1)
            case "dies":
                print("the ship went down", file=sys.stderr, flush=True)
                os._exit(9)
            case "sick":
                return _graded(0 if order.agent == "oracle" else 1)
            case word:
                raise AssertionError(word)

    def set_version(self, version: Version) -> None:
        self._version = version

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        pass

    def expect(self, kinds: Sequence[Kind]) -> None:
        pass

    def take_report(self) -> SandboxReport | None:
        return None

    def counts(self) -> dict[str, int]:
        return {}


def _graded(reward: int) -> Graded:
    return Graded(float(reward), Ending.SUBMITTED, {"reward": float(reward)})


@contextlib.asynccontextmanager
async def named(options: EnvironmentOptions) -> AsyncIterator[NamedEnvironment]:
    yield NamedEnvironment()
