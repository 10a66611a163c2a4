"""One attempt at one task, from image to verdict.

build or reuse the image → start → healthcheck → agent's set-up → for each step: its files,
the agent, the end of everything the agent started, the tests, a verdict → close.

A bad trial is data: `run_trial` turns whatever goes wrong into a void verdict with its
cause. It raises for one thing only, its own cancellation, and leaves a verdict even then.
"""

import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
from plimsoll.core.file_systems import disk_full_reason
from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import Backend, Sandbox
from plimsoll.sandboxes.scripts import script_argv
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.task import Step, Task
from plimsoll.trials.artifacts import ARTIFACTS, Bounds, carry_artifacts
from plimsoll.trials.disk_space import DiskSpace
from plimsoll.trials.healthcheck import wait_until_healthy
from plimsoll.trials.policy_session import (
    LONGEST_PAUSE,
    PolicyAccess,
    PolicySession,
    PolicyUsage,
    open_policy_session,
)
from plimsoll.trials.record import AgentEnd, Phases, StepRecord, TrialRecord, VerdictFile
from plimsoll.trials.sandbox_request import (
    agent_sandbox,
    check_supported,
    labels_for,
    task_env,
)
from plimsoll.trials.step_verdicts import combine, falls_short
from plimsoll.trials.verdicts import Cause, Verdict, Void
from plimsoll.trials.verifier import LOGS, Verifier
from plimsoll.trials.voids import void_of

__all__ = ["TrialResult", "run_trial"]

_AGENT_LOGS = "/logs/agent"
_LARGEST_AGENT_LOGS = 256 << 20
_ANYBODY = 0o777


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What is left of a trial in memory; the rest is in its folder."""

    task: str
    attempt: int
    verdict: Verdict
    seconds: float
    phases: dict[str, float]
    spent: PolicyUsage | None = None
    """None where the agent asks no policy."""
    id: str = ""
    """No other trial has it, not even another one of the same ticket."""
    folder: Path | None = None
    """Where it wrote; None where there was no trial."""


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
    rollout: str = "",
    bounds: Bounds | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> TrialResult:
    """Run one trial and write its folder: `directory`, or another name where that exists.

    Its seeds are made of `rollout`, where the policy has any: trials of one name are answered
    alike. `bounds` is the most that is kept of the agent's files.
    """
    started, began = time.time(), time.monotonic()
    record, name = TrialRecord(directory), secrets.token_hex(8)
    phases = Phases(on_phase)
    trial = _Trial(
        task, attempt, agent, backend, run, record, phases, assets, policy, rollout, name,
        bounds or Bounds(),
    )  # fmt: skip
    verdict: Verdict = Void(Cause.CANCELLED, "the trial was cancelled before it was graded")
    try:
        verdict = await trial.run()
    except PlimsollError as error:
        verdict = void_of(error)
    except Exception as error:  # noqa: BLE001 - the boundary: a fault of ours is one void trial
        verdict = _fault(error, record.folder)
        if verdict.cause is Cause.BUG:
            record.write_bug(traceback.format_exc())
    finally:
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
                trial=name,
            )
        )
    return TrialResult(
        task.name, attempt, verdict, seconds, phases.seconds, trial.spent, name, record.folder
    )


def _fault(error: Exception, folder: Path) -> Void:
    """What is no error of ours is a fault of ours, unless this host had no room for our files."""
    if full := disk_full_reason(error, folder):
        return Void(Cause.SANDBOX, full)
    return Void(Cause.BUG, f"{type(error).__name__}: {error}")


class _Trial:
    """The course of one trial, up to its verdict."""

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
        rollout: str,
        name: str,
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
        self._rollout = rollout
        self._bounds = bounds
        self._about = {
            "run": run,
            "task": task.name,
            "attempt": str(attempt),
            "trial": name,
            "agent": agent.name,
        }
        self.digests: dict[str, str] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.ends: dict[str, AgentEnd] = {}
        self.spent: PolicyUsage | None = None
        self.sandbox = ""

    async def run(self) -> Verdict:
        about, folder = self._about, self._record.folder
        async with open_policy_session(
            self._policy, self._agent, folder, about, self._rollout
        ) as talking:
            try:
                return await self._course(talking)
            finally:
                self.spent = None if talking is None else talking.spent

    async def _course(self, talking: PolicySession | None) -> Verdict:
        task = self._task
        if self._agent.needs_policy:
            check_supported(task.environment)
        with self._phase("build"):
            wanted = agent_sandbox(task, self._labels, self._assets, self._agent.mounts)
            image = await self._backend.build(wanted.source, on_output=self._record.build_log)
        with self._phase("start"):
            sandbox = await self._backend.create(image, wanted.spec)
        self.sandbox = sandbox.id
        self._room = DiskSpace()
        verifier = Verifier(
            task,
            self._backend,
            self._labels,
            self._record,
            wanted.supplies,
            self.digests,
            self._room,
            self._bounds,
        )
        try:
            await self._prepare(sandbox)
            for step in task.steps:
                verdict = await self._step(step, sandbox, verifier, talking)
                self.verdicts[step.name] = verdict
                if isinstance(verdict, Void) or falls_short(verdict, step.min_reward):
                    break
        except PlimsollError as error:
            await self._room.look(sandbox)
            raise self._room.blame(error) from error.__cause__
        finally:
            with self._phase("close"):
                await self._record.close(sandbox)
        return combine(
            list(self.verdicts.items()), task.reward_strategy, several=task.is_multi_step
        )

    async def _prepare(self, sandbox: Sandbox) -> None:
        for folder in (_AGENT_LOGS, LOGS, ARTIFACTS):
            await sandbox.empty(folder, mode=_ANYBODY)
        if self._task.environment.healthcheck is not None:
            with self._phase("healthcheck"):
                await wait_until_healthy(self._task.environment.healthcheck, sandbox)
        with self._phase("agent set-up"):
            await self._agent.set_up(self._task, sandbox)

    async def _step(
        self, step: Step, sandbox: Sandbox, verifier: Verifier, talking: PolicySession | None
    ) -> Verdict:
        record = self._record.step(step.name if self._task.is_multi_step else None)
        with self._phase("step set-up"):
            await self._set_up_step(step, sandbox)
        with self._phase("agent"):
            outcome = await self._run_agent(step, sandbox, record, talking)
        await self._room.look(sandbox)
        with self._phase("kill"):
            await sandbox.kill_all()
        with self._phase("verifier"):
            verdict = await verifier.grade(step, sandbox, record, outcome.ending)
            verdict = await self._room.judge(verdict, self._task.reward_range[1], record)
        with self._phase("artifacts"):
            await self._keep(step, sandbox, record)
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
            await wait_until_healthy(step.healthcheck, sandbox)

    async def _run_agent(
        self, step: Step, sandbox: Sandbox, record: StepRecord, talking: PolicySession | None
    ) -> Outcome:
        """Let the agent work for as long as the step allows; how it ended is kept apart."""
        await sandbox.set_network(step.agent_network)
        limit = step.agent.timeout_sec
        try:
            if talking is None:
                outcome = await self._within_time(step, sandbox, record)
            else:
                async with talking.reach(self._agent, sandbox) as access:
                    outcome = await self._within_time(step, sandbox, record, talking, access)
                outcome = talking.judge(self._agent, outcome, limit)
        except AgentError:
            if talking is not None and (error := talking.failed(limit)) is not None:
                raise error from None
            await self._blame_memory(sandbox)
            raise
        self.ends[step.name] = AgentEnd(
            ending=outcome.ending,
            detail=outcome.detail,
            exit_code=outcome.exit_code,
            turns=None if talking is None else talking.turns,
            tokens=None if talking is None else talking.tokens,
        )
        return outcome

    async def _within_time(
        self,
        step: Step,
        sandbox: Sandbox,
        record: StepRecord,
        talking: PolicySession | None = None,
        access: Access | None = None,
    ) -> Outcome:
        solution = self._task.solution_env if self._agent.reference else dict[str, str]()
        assignment = Assignment(
            task=self._task,
            step=step,
            sandbox=sandbox,
            instruction=step.instruction,
            env=task_env(solution, self._task.file, "solution.env"),
            user=step.agent.user,
            on_output=record.agent_log,
            policy=access,
        )
        limit = step.agent.timeout_sec
        clock = Stopwatch() if talking is None else talking.clock
        longest = LONGEST_PAUSE if talking is None else talking.longest_pause
        before = clock.stopped_seconds
        time_limit = clock.limit(limit, stopped=longest)
        try:
            async with time_limit:
                return await self._agent.run(assignment)
        except TimeoutError:
            if not time_limit.expired():
                raise
            if time_limit.overdue:
                why = f"the policy was paused for new weights, and not back after {longest:g} s"
                raise PolicyError(why) from None
            if self._agent.reference:
                raise SolutionError(f"the solution did not end within {limit:g} s") from None
            return Outcome(Ending.BUDGET, f"out of time after {limit:g} s")
        finally:
            if paused := clock.stopped_seconds - before:
                self._phases.add("paused", paused)

    async def _blame_memory(self, sandbox: Sandbox) -> None:
        """An agent that failed after the kernel killed for memory failed of that."""
        kills = (await sandbox.status()).oom_kills
        if kills:
            limit = self._task.environment.memory_mb
            raise SandboxUnavailable(
                f"the kernel killed {kills} process(es) of the agent for memory "
                f"(limit {limit} MB, environment.memory_mb)"
            )

    async def _keep(self, step: Step, sandbox: Sandbox, record: StepRecord) -> None:
        """Keep what the task and the agent want kept. What cannot be is only noted."""
        notes: list[str] = []
        if not step.separate_verifier:
            notes += await carry_artifacts(step, sandbox, record.artifacts, self._bounds)
        size, entries = min(self._bounds.size, _LARGEST_AGENT_LOGS), self._bounds.entries
        notes += await record.take_logs(sandbox, _AGENT_LOGS, limit=size, entries=entries)
        record.write_notes(notes)
