"""Trial: one execution of a task by an agent, from image to verdict.

build or reuse the image → start → health check → agent's set-up → for each step: its files,
the agent, killing all of the agent's processes, the tests, a verdict → close.

A failed trial is data: `run_trial` turns every exception into a void verdict with a cause. When
it is cancelled, it writes a verdict and raises. Otherwise it raises only if it cannot write the
trial's folder.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from plimsoll.agents.protocol import Agent, Assignment, Outcome
from plimsoll.core.endings import Ending
from plimsoll.core.errors import (
    AgentError,
    PlimsollError,
    PolicyError,
    SandboxUnavailable,
    SetUpError,
    SolutionError,
)
from plimsoll.core.stopwatch import Stopwatch
from plimsoll.core.versions import Version
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import Backend, Sandbox
from plimsoll.sandboxes.scripts import script_argv
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.task import Step, Task
from plimsoll.tasks.task_file import HealthcheckConfig
from plimsoll.trials.artifacts import ARTIFACTS, Bounds, copy_artifacts
from plimsoll.trials.full_disk import FullDiskCheck
from plimsoll.trials.policy_session import (
    MAX_PAUSE,
    PolicyAccess,
    PolicySession,
    open_policy_session,
)
from plimsoll.trials.policy_usage import PolicyUsage
from plimsoll.trials.record import AgentEnd, Phases, StepRecord, TrialRecord, VerdictFile
from plimsoll.trials.sandbox_request import (
    agent_sandbox,
    check_supported,
    labels_for,
    task_env,
)
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void
from plimsoll.trials.verifier import LOGS, Verifier
from plimsoll.trials.voids import void_of

__all__ = ["TrialResult", "run_trial"]


def _is_below_minimum(verdict: Graded, min_reward: float | Mapping[str, float] | None) -> bool:
    """Whether a step did not reach the minimum reward for the next step."""
    if min_reward is None:
        return False
    if isinstance(min_reward, Mapping):
        return any(verdict.rewards.get(key, 0.0) < bound for key, bound in min_reward.items())
    return verdict.reward < min_reward


def _combine_verdicts(
    verdicts: Sequence[tuple[str, Verdict]], strategy: Literal["mean", "final"], multi_step: bool
) -> Verdict:
    """Combine the verdicts of the steps that ran, in order.

    A single-step task has the verdict of its step. With several steps, one void step makes the
    whole trial void: a mean over the remaining steps is not a reward.
    """
    graded: list[Graded] = []
    for name, verdict in verdicts:
        if isinstance(verdict, Void):
            reason = f"step {name}: {verdict.reason}" if multi_step else verdict.reason
            return replace(verdict, reason=reason)
        graded.append(verdict)
    if not multi_step or strategy == "final":
        return graded[-1]
    endings = [verdict.ending for verdict in graded]
    return Graded(
        reward=sum(verdict.reward for verdict in graded) / len(graded),
        ending=next((e for e in endings if e is not Ending.SUBMITTED), Ending.SUBMITTED),
        rewards=_mean_by_key(graded),
        evidence=tuple(note for verdict in graded for note in verdict.evidence),
    )


def _mean_by_key(graded: Sequence[Graded]) -> dict[str, float]:
    """Mean by key; a key that a step lacks counts as 0."""
    keys = dict.fromkeys(key for verdict in graded for key in verdict.rewards)
    return {key: sum(v.rewards.get(key, 0.0) for v in graded) / len(graded) for key in keys}


_AGENT_LOGS = "/logs/agent"
_MAX_AGENT_LOG_BYTES = 256 << 20
_WORLD_WRITABLE = 0o777


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial in memory; everything else is in its folder."""

    verdict: Verdict
    seconds: float
    phases: dict[str, float]
    usage: PolicyUsage | None = None
    """None if the agent has no policy."""
    id: str = ""
    """Unique id; another trial of the same ticket has another id."""
    folder: Path | None = None
    """The folder of the trial; None if there was no trial."""
    version_runs: tuple[tuple[Version, int], ...] = ()
    """Runs of (version, number of generated tokens) in the trajectory, in order."""
    blobs: tuple[Path, ...] = ()
    """The blobs that the trajectory refers to."""


async def run_trial(
    task: Task,
    *,
    attempt: int,
    agent: Agent,
    backend: Backend,
    run: str,
    directory: Path,
    assets: StagedAssets | None = None,
    policy: PolicyAccess | None = None,
    seed_name: str = "",
    bounds: Bounds | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> TrialResult:
    """Run one trial and write its folder: `directory`, or another name if that exists.

    If the policy has a seed, trials with the same `seed_name` get the same answers. `bounds`
    limits the files of the agent that are kept.
    """
    started, began = time.time(), time.monotonic()
    record, trial_id = TrialRecord(directory), secrets.token_hex(8)
    phases = Phases(on_phase)
    trial = _Trial(
        task, attempt, agent, backend, run, record, phases, assets, policy, seed_name, trial_id,
        bounds or Bounds(),
    )  # fmt: skip

    def write(verdict: Verdict) -> float:
        """Write the verdict, and return the seconds of the trial."""
        seconds = time.monotonic() - began
        record.write_verdict(
            VerdictFile(
                task=task.name,
                attempt=attempt,
                agent=agent.name,
                backend=backend.name,
                verdict=verdict,
                steps=trial.verdicts,
                ends=trial.ends,
                tests=trial.digests,
                seconds=round(seconds, 6),
                phases=phases.seconds,
                started=started,
                sandbox=trial.sandbox,
                trial=trial_id,
            )
        )
        return seconds

    try:
        verdict = await trial.run()
    except Exception as error:  # noqa: BLE001 - the boundary: any exception is one void trial
        verdict = void_of(error, record.folder)
    except BaseException:
        with suppress(OSError):  # cancellation takes precedence
            write(Void(Cause.CANCELLED, "the trial was cancelled before it was graded"))
        raise
    seconds = write(verdict)
    session = trial.session
    return TrialResult(
        verdict=verdict,
        seconds=seconds,
        phases=phases.seconds,
        usage=trial.usage,
        id=trial_id,
        folder=record.folder,
        version_runs=() if session is None else session.version_runs,
        blobs=() if session is None else session.blobs,
    )


class _Trial:
    """One trial up to its verdict."""

    def __init__(
        self,
        task: Task,
        attempt: int,
        agent: Agent,
        backend: Backend,
        run: str,
        record: TrialRecord,
        phases: Phases,
        assets: StagedAssets | None,
        policy: PolicyAccess | None,
        seed_name: str,
        trial_id: str,
        bounds: Bounds,
    ) -> None:
        self._task = task
        self._agent = agent
        self._backend = backend
        self._record = record
        self._phases = phases
        self._phase = phases.phase
        self._labels = labels_for(task, run, attempt)
        self._assets = assets
        self._policy = policy
        self._seed_name = seed_name
        self._bounds = bounds
        self._about = {
            "run": run,
            "task": task.name,
            "attempt": str(attempt),
            "trial": trial_id,
            "agent": agent.name,
        }
        self.digests: dict[str, str] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.ends: dict[str, AgentEnd] = {}
        self.usage: PolicyUsage | None = None
        self.session: PolicySession | None = None
        self.sandbox = ""

    async def run(self) -> Verdict:
        about, folder = self._about, self._record.folder
        async with open_policy_session(
            self._policy, self._agent, folder, about, self._seed_name
        ) as session:
            self.session = session
            try:
                return await self._run_steps(session)
            finally:
                self.usage = None if session is None else session.usage

    async def _run_steps(self, session: PolicySession | None) -> Verdict:
        task = self._task
        if self._agent.needs_policy:
            check_supported(task.environment)
        with self._phase("build"):
            request = agent_sandbox(task, self._labels, self._assets, self._agent.mounts)
            image = await self._backend.build(request.source, on_output=self._record.build_log)
        with self._phase("start"):
            sandbox = await self._backend.create(image, request.spec)
        self.sandbox = sandbox.id
        self._full_disk = FullDiskCheck()
        verifier = Verifier(
            task,
            self._backend,
            self._labels,
            self._record,
            request.supplies,
            self.digests,
            self._full_disk,
            self._bounds,
        )
        try:
            await self._prepare(sandbox)
            for step in task.steps:
                verdict = await self._step(step, sandbox, verifier, session)
                self.verdicts[step.name] = verdict
                if isinstance(verdict, Void) or _is_below_minimum(verdict, step.min_reward):
                    break
        except PlimsollError as error:
            await self._full_disk.check(sandbox)
            raise self._full_disk.explain(error) from error.__cause__
        finally:
            with self._phase("close"):
                await self._record.close(sandbox)
        return _combine_verdicts(
            list(self.verdicts.items()), task.reward_strategy, multi_step=task.is_multi_step
        )

    async def _prepare(self, sandbox: Sandbox) -> None:
        for folder in (_AGENT_LOGS, LOGS, ARTIFACTS):
            await sandbox.empty(folder, mode=_WORLD_WRITABLE)
        if self._task.environment.healthcheck is not None:
            with self._phase("healthcheck"):
                await _wait_until_healthy(self._task.environment.healthcheck, sandbox)
        with self._phase("agent set-up"):
            await self._agent.set_up(self._task, sandbox)

    async def _step(
        self, step: Step, sandbox: Sandbox, verifier: Verifier, session: PolicySession | None
    ) -> Verdict:
        record = self._record.step(step.name if self._task.is_multi_step else None)
        with self._phase("step set-up"):
            await self._set_up_step(step, sandbox)
        with self._phase("agent"):
            outcome = await self._run_agent(step, sandbox, record, session)
        await self._full_disk.check(sandbox)
        with self._phase("kill"):
            await sandbox.kill_all()
        with self._phase("verifier"):
            verdict = await verifier.grade(step, sandbox, record, outcome.ending)
            verdict = await self._full_disk.judge(verdict, self._task.reward_range[1], record)
        with self._phase("artifacts"):
            await self._save_files(step, sandbox, record)
        return verdict

    async def _set_up_step(self, step: Step, sandbox: Sandbox) -> None:
        await sandbox.set_network(self._task.network)
        if step.workdir is not None:
            await sandbox.upload(step.workdir, sandbox.workdir)
            script = step.workdir / "setup.sh"
            if script.is_file():
                inside = f"{sandbox.workdir.rstrip('/')}/setup.sh"
                done = await sandbox.exec(script_argv(script, inside))
                if not done.ok:
                    where = script.relative_to(self._task.path)
                    raise SetUpError(f"{where} {done.complaint()}")
        if step.healthcheck is not None:
            await _wait_until_healthy(step.healthcheck, sandbox)

    async def _run_agent(
        self, step: Step, sandbox: Sandbox, record: StepRecord, session: PolicySession | None
    ) -> Outcome:
        """Run the agent within the time limit of the step and record how it ended."""
        await sandbox.set_network(step.agent_network)
        limit = step.agent.timeout_sec
        try:
            if session is None:
                outcome = await self._run_with_limit(step, sandbox, record)
            else:
                async with session.connect(self._agent, sandbox) as access:
                    outcome = await self._run_with_limit(step, sandbox, record, session, access)
                outcome = session.check_outcome(self._agent, outcome, limit)
        except AgentError:
            if session is not None and (error := session.policy_failure(limit)) is not None:
                raise error from None
            await self._blame_memory(sandbox)
            raise
        self.ends[step.name] = AgentEnd(
            ending=outcome.ending,
            detail=outcome.detail,
            exit_code=outcome.exit_code,
            turns=None if session is None else session.turns,
            tokens=None if session is None else session.tokens,
        )
        return outcome

    async def _run_with_limit(
        self,
        step: Step,
        sandbox: Sandbox,
        record: StepRecord,
        session: PolicySession | None = None,
        access: Access | None = None,
    ) -> Outcome:
        solution = self._task.solution_env if self._agent.reference else dict[str, str]()
        assignment = Assignment(
            step=step,
            sandbox=sandbox,
            instruction=step.instruction,
            env=task_env(solution, self._task.file, "solution.env"),
            user=step.agent.user,
            on_output=record.agent_log,
            policy=access,
        )
        limit = step.agent.timeout_sec
        clock = Stopwatch() if session is None else session.clock
        max_pause = MAX_PAUSE if session is None else session.longest_pause
        before = clock.stopped_seconds
        time_limit = clock.limit(limit, stopped=max_pause)
        try:
            async with time_limit:
                return await self._agent.run(assignment)
        except TimeoutError:
            if not time_limit.expired():
                raise
            if time_limit.overdue:
                reason = f"the policy was paused for new weights for more than {max_pause:g} s"
                raise PolicyError(reason) from None
            if self._agent.reference:
                raise SolutionError(f"the solution did not finish within {limit:g} s") from None
            return Outcome(Ending.BUDGET, f"out of time after {limit:g} s")
        finally:
            if paused := clock.stopped_seconds - before:
                self._phases.add("paused", paused)

    async def _blame_memory(self, sandbox: Sandbox) -> None:
        """Raise an error about memory if the kernel killed processes of the failed agent."""
        kills = (await sandbox.status()).oom_kills
        if kills:
            limit = self._task.environment.memory_mb
            raise SandboxUnavailable(
                f"the kernel killed {kills} process(es) of the agent for memory "
                f"(limit {limit} MB, environment.memory_mb)"
            )

    async def _save_files(self, step: Step, sandbox: Sandbox, record: StepRecord) -> None:
        """Keep the artifacts and the agent's logs; record those that cannot be kept."""
        notes: list[str] = []
        if not step.separate_verifier:
            notes += await copy_artifacts(step, sandbox, record.artifacts, self._bounds)
        size, entries = min(self._bounds.size, _MAX_AGENT_LOG_BYTES), self._bounds.entries
        notes += await record.save_logs(sandbox, _AGENT_LOGS, limit=size, entries=entries)
        record.write_notes(notes)


async def _wait_until_healthy(check: HealthcheckConfig, sandbox: Sandbox) -> None:
    """Run the check until it passes. Failures in the start period do not count."""
    began = time.monotonic()
    failures = 0
    while True:
        done = await sandbox.exec(check.command, timeout=check.timeout_sec)
        if done.ok:
            return
        starting = time.monotonic() - began < check.start_period_sec
        if not starting:
            failures += 1
        if failures >= check.retries:
            times = f"{failures} times" if failures > 1 else "once"
            raise SetUpError(f"healthcheck {check.command!r}, tried {times}: {done.complaint()}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
