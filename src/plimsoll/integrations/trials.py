"""Trials of tasks that another trainer chooses, on workers, by the same rules as in a run.

A void trial never becomes a number: it is tried again as the table of causes says, and what is
void even then has no reward. The breaker watches all of them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from plimsoll.config.dump import dump_config
from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import PlimsollError, TrainingError, UsageError
from plimsoll.core.versions import Version
from plimsoll.ledger.books.group import ticket_name
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.policy import Policy
from plimsoll.runs.directory import RunDirectory, write_whole
from plimsoll.runs.engines import make_supervisor
from plimsoll.runs.evaluation.eval_loop import first_error
from plimsoll.runs.plan import Plan
from plimsoll.runs.policies import Served
from plimsoll.runs.results import Row, row_of
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import CAUSES, Cause
from plimsoll.workers.place import Order

__all__ = ["Trials"]

_log = logging.getLogger(__name__)
_SAY_SECONDS = 30.0
"""Between two messages about workers that wait for a host."""


class Trials:
    """Runs the members of groups that it is given. Its workers are up while it is entered."""

    def __init__(
        self,
        config: Config | Path | str,
        served: Served,
        *,
        out: Path | None = None,
        kind: str = "trials",
        keep_going: bool = False,
    ) -> None:
        read = config if isinstance(config, Config) else load_config(Path(config))
        # When it ends is for the trainer to say.
        run = read.run.model_copy(update={"steps": read.run.steps or 1})
        self.plan = Plan.make(read.model_copy(update={"run": run}), served)
        self._out = out
        self._kind = kind
        self._breaker = Breaker(Policy(tasks=len(self.tasks), stops=not keep_going))
        self._stack = AsyncExitStack()

    @property
    def tasks(self) -> list[str]:
        """The tasks that may be asked for: all but those in quarantine."""
        return sorted(self.plan.trained.admitted)

    async def __aenter__(self) -> Self:
        self.plan = await self.plan.surveyed()
        self.directory = RunDirectory.create(self._out, now=datetime.now(), kind=self._kind)
        text = dump_config(self.plan.config).encode()
        write_whole(self.directory.config, text, lasting=True)
        async with AsyncExitStack() as stack:
            self._workers = make_supervisor(self.plan, self.directory)
            await stack.enter_async_context(self._workers)
            await self._wait_ready()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(exc_type, exc, traceback)

    def set_version(self, version: Version) -> None:
        """The policy generates with these weights from now on."""
        self._workers.set_version(version)

    async def run(self, task: str, group: str, place: int) -> Row:
        """A trial that was graded, or the last of those that were all void. Its trajectory is a
        whole path here.

        `group` and `place` name it, and are used once. Raises `TrainingError` when the breaker
        trips: what there is to learn from then on is worth nothing.
        """
        self._check_task(task)
        met = Counter[Cause]()
        while True:
            row = await self._try(task, group, place, met.total())
            if row.cause is None or met[row.cause] == CAUSES[row.cause].retries:
                whole = self.directory.stored(row.trajectory)
                return msgspec.structs.replace(row, trajectory=whole)
            met[row.cause] += 1

    async def run_all(self, tasks: Sequence[str], group: str) -> list[Row]:
        """The same for each of these, which are all members of one group's name. Where one
        raises, the others are cancelled."""
        try:
            async with asyncio.TaskGroup() as members:
                running = [
                    members.create_task(self.run(task, group, place))
                    for place, task in enumerate(tasks)
                ]
        except* PlimsollError as errors:
            raise first_error(errors) from None
        finally:
            self._workers.group_over(group)
        return [member.result() for member in running]

    async def _wait_ready(self) -> None:
        """Wait for a first worker. Nobody else would say for what, so it is logged."""
        ready = asyncio.create_task(self._workers.wait_ready())
        try:
            while not (await asyncio.wait([ready], timeout=_SAY_SECONDS))[0]:
                if self._workers.waiting:
                    _log.warning("%s", self._workers.waiting)
            await ready
        finally:
            ready.cancel()

    def _check_task(self, task: str) -> None:
        known = self.plan.trained
        if task in known.left_out:
            raise UsageError(f"the task {task} is in quarantine: {known.left_out[task]}")
        if task not in known.tasks:
            where = self.plan.config.run.tasks
            raise UsageError(f"there is no task {task!r} in {where}: rows name tasks of the config")

    async def _try(self, task: str, group: str, place: int, attempt: int) -> Row:
        ticket = ticket_name(group, place, attempt)
        order = Order(
            ticket=ticket,
            group=group,
            task=str(self.plan.tasks[task].path),
            name=task,
            attempt=attempt + 1,
            folder=str(self.directory.rollout(task, ticket).absolute()),
        )
        done = await self._workers.run(order)
        trial = TrialResult(
            task, order.attempt, done.verdict, done.seconds, done.phases, id=done.trial
        )
        row = row_of(
            trial,
            ticket=ticket,
            folder=self.directory.inside(done.folder or order.folder),
            trajectory=done.trajectory,
        )
        await self.directory.append(row)
        self._breaker.trial(row)
        if self._breaker.tripped and (trip := self._breaker.trip) is not None:
            raise TrainingError(
                f"the breaker tripped ({trip.rule}): {trip.said}; look at {self.directory.path}, "
                "or go on in spite of it with keep_going=True"
            )
        return row
