"""What a run's workers run trials in: sandboxes, the gateway before the policy, storage.

What a trial held is gone at its end, whichever way it ends: its sandbox, its session and its
trajectory, of which only the file is left. Nothing is kept for its group.
"""

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plimsoll.agents.protocol import Agent
from plimsoll.agents.registry import make_agent
from plimsoll.config.file import Config
from plimsoll.core.errors import PlimsollError, TrajectoryError
from plimsoll.core.versions import Version
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.runs.backends import make_backend
from plimsoll.runs.counting import CountingBackend
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.forecast import Forecast
from plimsoll.runs.policies import PolicyService, policy_for
from plimsoll.runs.pooling import hints_for, make_pool
from plimsoll.runs.storing import Store
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stats import Readings
from plimsoll.tasks.assets.staged_assets import load_assets
from plimsoll.tasks.loader import load_task
from plimsoll.tasks.task import Task
from plimsoll.trials.artifacts import Bounds
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Graded
from plimsoll.trials.voids import void_of
from plimsoll.workers.place import Coming, Kind, News, Order, Result

__all__ = ["PlaceOptions", "TrialPlace", "trial_place"]

_TASKS_KEPT = 256
LET_GO_SECONDS = 120.0
"""What the trainer takes at most, after an update that failed, to have servers generate again."""


class PlaceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker is told of its run."""

    config: msgspec.Raw
    """The effective config, as JSON."""
    directory: str
    stored_as: str = ""
    """The run's own part of a storage that others may store in too."""
    capabilities: Capabilities | None = None
    """What the policy's servers can return, as the run found before its start. A worker starts
    without asking them, so it starts while they are away or paused, too."""


class TrialPlace:
    """Runs trials. Made by `trial_place`."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        pool: Pool,
        counting: CountingBackend,
        service: PolicyService | None,
        store: Store,
    ) -> None:
        self._config = config
        self._directory = directory
        self._pool = pool
        self._counting = counting
        """What the pool itself starts its sandboxes by."""
        self._service = service
        self._assets = load_assets(config.assets.path)
        self._store = store
        self._load_task = functools.lru_cache(_TASKS_KEPT)(load_task)
        self._agents: dict[str, Agent] = {}
        hints = hints_for(pool, directory.name, self._assets, self._agent)
        self._forecast = None if hints is None else Forecast(hints, self._task, pool.warn)
        self._told_warnings = 0
        self._told_readings = Readings()
        self._trials = 0
        self._storing = 0

    async def run(self, order: Order) -> Result:
        """Run a ticket's trial, and store what was said in it."""
        began = time.monotonic()
        self._trials += 1
        if self._forecast is not None:
            self._forecast.begin(order)
        try:
            result = await self._trial(order)
        except PlimsollError as error:
            # Before there was a trial: its task or its agent cannot be had.
            seconds = time.monotonic() - began
            return Result(ticket=order.ticket, verdict=void_of(error), seconds=seconds)
        finally:
            self._trials -= 1
            if self._forecast is not None:
                self._forecast.over(order)
        return await self._with_trajectory(order, result)

    async def group_over(self, group: str) -> None:
        """Nothing is kept for a group: what it is scored by is in storage."""

    def expect(self, coming: Sequence[Coming]) -> None:
        if self._forecast is not None:
            self._forecast.tell(coming)

    async def close(self) -> None:
        if self._forecast is not None:
            await self._forecast.close()

    def news(self) -> News | None:
        warnings, readings = self._pool.warnings, self._pool.readings
        more = readings.since(self._told_readings)
        news = News(warnings=tuple(warnings[self._told_warnings :]), sandboxes=more)
        self._told_warnings, self._told_readings = len(warnings), readings
        return None if news == News() else news

    def set_version(self, version: Version) -> None:
        if self._service is not None:
            self._service.set_version(version)

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        if self._service is not None:
            self._service.set_paused(paused, drains=drains)

    def counts(self) -> dict[str, int]:
        sessions = [] if self._service is None else list(self._service.policy.gateway.sessions)
        return {
            "trials": self._trials,
            "sandboxes": self._counting.alive,
            "sessions": len(sessions),
            "requests": sum(session.in_flight for session in sessions),
            "trajectories": len(sessions) + self._storing,
        }

    async def _trial(self, order: Order) -> Result:
        task = await self._task(order.kind)
        if self._forecast is not None:
            self._forecast.read(order, task)
        done = await run_trial(
            task,
            attempt=order.attempt,
            agent=self._agent(order.agent),
            backend=self._pool,
            run=self._directory.name,
            directory=Path(order.folder),
            assets=self._assets,
            policy=None if self._service is None else self._service.policy,
            rollout=order.rollout,
            bounds=Bounds.of(self._config.storage),
        )
        return Result(
            ticket=order.ticket,
            verdict=done.verdict,
            seconds=done.seconds,
            phases=done.phases,
            trial=done.id,
            folder="" if done.folder in (None, Path(order.folder)) else str(done.folder),
        )

    async def _task(self, kind: Kind) -> Task:
        # Read beside the loop: a task folder may be on a slow disk.
        return await asyncio.to_thread(self._load_task, Path(kind.task), kind.name or None)

    def _agent(self, named: str) -> Agent:
        name = named or self._config.run.agent
        if name not in self._agents:
            self._agents[name] = make_agent(name, layer=self._config.agents.folder)
        return self._agents[name]

    async def _with_trajectory(self, order: Order, result: Result) -> Result:
        """The result, with where its trajectory is. What cannot be stored cannot be graded:
        it could not be trained on."""
        self._storing += 1
        try:
            folder = Path(result.folder or order.folder)
            stored = await self._store.keep_in_time(folder, order.ticket)
        except TrajectoryError as error:
            graded = isinstance(result.verdict, Graded)
            return replace(result, verdict=void_of(error)) if graded else result
        finally:
            self._storing -= 1
        return replace(result, trajectory=stored.path, segments=stored.segments)


@asynccontextmanager
async def trial_place(options: msgspec.Raw) -> AsyncGenerator[TrialPlace]:
    """The place of a run's worker; up while it is entered."""
    wanted = msgspec.json.decode(options, type=PlaceOptions)
    config = Config.model_validate_json(bytes(wanted.config))
    directory = RunDirectory(Path(wanted.directory))
    store = Store(config.storage.trajectories, directory.path, wanted.stored_as)
    run = config.run
    agent = make_agent(run.agent, layer=config.agents.folder)
    asked = policy_for(agent, config.policy, (), None, None)
    if asked is not None:
        asked = dataclasses.replace(
            asked, found=wanted.capabilities, longest_pause=_longest_pause(config)
        )
    async with AsyncExitStack() as stack:
        service = None if asked is None else PolicyService(asked, directory.blobs)
        if service is not None:
            await stack.enter_async_context(service)
        counting = CountingBackend(make_backend(run.backend, config))
        pool = make_pool(counting, config.pool, reuse=None, concurrency=config.workers.concurrency)
        await stack.enter_async_context(pool)
        place = TrialPlace(config, directory, pool, counting, service, store)
        stack.push_async_callback(place.close)
        yield place


def _longest_pause(config: Config) -> float:
    """An update that takes longer fails, and the run ends with it."""
    return config.training.update_seconds + LET_GO_SECONDS
