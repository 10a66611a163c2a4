"""The environment of a worker's trials: sandboxes, the gateway to the policy, the trajectory store.

A trial leaves nothing in memory at its end, however it ends: its sandbox, session and trajectory
are gone, and only files remain.
"""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from plimsoll.agents.protocol import Agent
from plimsoll.agents.registry import make_agent
from plimsoll.config.file import Config
from plimsoll.core.errors import TrajectoryError
from plimsoll.core.versions import Version
from plimsoll.ledger.events import Segment
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stats import Readings
from plimsoll.tasks.assets.staged_assets import load_assets
from plimsoll.tasks.loader import load_task
from plimsoll.tasks.task import Task
from plimsoll.trials.artifacts import Bounds
from plimsoll.trials.trial import TrialResult, run_trial
from plimsoll.trials.verdicts import Graded
from plimsoll.trials.voids import void_of
from plimsoll.workers.messages import EnvironmentOptions, Kind, Order, Result, SandboxReport
from plimsoll.workers.worker.backends import CountingBackend, make_backend
from plimsoll.workers.worker.policy_service import PolicyService, policy_for
from plimsoll.workers.worker.prewarming import Prewarming
from plimsoll.workers.worker.sandbox_pool import make_pool
from plimsoll.workers.worker.trajectory_store import BLOBS, TrajectoryStore

__all__ = ["OnPhase", "TrialEnvironment", "trial_environment"]

_CACHED_TASKS = 256
RESUME_SECONDS = 120.0
"""Longest time that a trainer takes, after a failed update, to resume generation."""

OnPhase = Callable[[str, str], None]
"""Called with a ticket and the phase that its trial enters."""


class TrialEnvironment:
    """Runs trials. Made by `trial_environment`."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        pool: Pool,
        counting: CountingBackend,
        service: PolicyService | None,
        store: TrajectoryStore,
        on_phase: OnPhase | None,
    ) -> None:
        self._config = config
        self._run = directory.resolve().name
        self._pool = pool
        self._counting = counting
        """The backend below the pool."""
        self._service = service
        self._assets = load_assets(config.assets.path)
        self._store = store
        self._on_phase = on_phase
        self._load_task = functools.lru_cache(_CACHED_TASKS)(load_task)
        self._agents: dict[str, Agent] = {}
        self._prewarming = Prewarming(pool, self._run, self._assets, self._agent, self._task)
        self._reported_warnings = 0
        self._reported_readings = Readings()
        self._trials = 0
        self._storing = 0

    async def run(self, order: Order) -> Result:
        """Run a ticket's trial and store its trajectory. Raises only before the trial is started:
        if its task or its agent cannot be loaded."""
        self._trials += 1
        try:
            done = await self._trial(order, await self._prewarming.begin(order))
        finally:
            self._trials -= 1
            self._prewarming.over(order)
        return await self._with_trajectory(order, done)

    def expect(self, kinds: Sequence[Kind]) -> None:
        self._prewarming.expect(kinds)

    async def close(self) -> None:
        await self._prewarming.close()

    def take_report(self) -> SandboxReport | None:
        warnings, readings = self._pool.warnings, self._pool.readings
        more = readings.since(self._reported_readings)
        report = SandboxReport(warnings=tuple(warnings[self._reported_warnings :]), sandboxes=more)
        self._reported_warnings, self._reported_readings = len(warnings), readings
        return None if report == SandboxReport() else report

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

    async def _trial(self, order: Order, task: Task) -> TrialResult:
        on_phase = self._on_phase
        return await run_trial(
            task,
            attempt=order.attempt,
            agent=self._agent(order.agent),
            backend=self._pool,
            run=self._run,
            directory=Path(order.folder),
            assets=self._assets,
            policy=None if self._service is None else self._service.policy,
            seed_name=order.seed_name,
            bounds=Bounds.of(self._config.storage),
            on_phase=None if on_phase is None else functools.partial(on_phase, order.ticket),
        )

    async def _task(self, kind: Kind) -> Task:
        # In a thread: the task folder may be on a slow disk.
        return await asyncio.to_thread(self._load_task, Path(kind.task), kind.name)

    def _agent(self, named: str) -> Agent:
        name = named or self._config.run.agent
        if name not in self._agents:
            self._agents[name] = make_agent(name, layer=self._config.agents.folder)
        return self._agents[name]

    async def _with_trajectory(self, order: Order, done: TrialResult) -> Result:
        """Store the trajectory. A graded trial whose trajectory cannot be stored is void: it
        could not be trained on."""
        result = Result(
            ticket=order.ticket,
            verdict=done.verdict,
            seconds=done.seconds,
            sandbox_seconds=done.phases.get("start"),
            paused_seconds=done.phases.get("paused"),
            trial=done.id,
            folder="" if done.folder in (None, Path(order.folder)) else str(done.folder),
            usage=done.usage,
        )
        self._storing += 1
        try:
            folder = Path(result.folder or order.folder)
            path = await self._store.keep_in_time(folder, order.ticket, done.blobs)
        except TrajectoryError as error:
            graded = isinstance(result.verdict, Graded)
            return replace(result, verdict=void_of(error)) if graded else result
        finally:
            self._storing -= 1
        if not path:
            return result
        segments = tuple(Segment(version, tokens) for version, tokens in done.version_runs)
        return replace(result, trajectory=path, segments=segments)


@asynccontextmanager
async def trial_environment(
    options: EnvironmentOptions, on_phase: OnPhase | None = None
) -> AsyncGenerator[TrialEnvironment]:
    """The environment of a run's trials, up while this is entered."""
    config = Config.model_validate_json(bytes(options.config))
    directory = Path(options.directory)
    store = TrajectoryStore(config.storage.trajectories, directory, options.stored_as)
    run = config.run
    agent = make_agent(run.agent, layer=config.agents.folder)
    policy = policy_for(agent, config.policy, (), None, None)
    if policy is not None:
        policy = dataclasses.replace(
            policy, found=options.capabilities, longest_pause=_longest_pause(config)
        )
    async with AsyncExitStack() as stack:
        service = None if policy is None else PolicyService(policy, directory / BLOBS)
        if service is not None:
            await stack.enter_async_context(service)
        counting = CountingBackend(make_backend(run.backend, config))
        pool = make_pool(counting, config.pool, concurrency=config.workers.concurrency)
        await stack.enter_async_context(pool)
        environment = TrialEnvironment(config, directory, pool, counting, service, store, on_phase)
        stack.push_async_callback(environment.close)
        yield environment


def _longest_pause(config: Config) -> float:
    """The longest pause for new weights: an update that takes longer fails and ends the run."""
    return config.training.update_seconds + RESUME_SECONDS
