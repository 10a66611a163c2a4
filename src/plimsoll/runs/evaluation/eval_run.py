"""`plimsoll eval`: checks a request and makes an evaluation that is ready to run."""

import asyncio
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from plimsoll.agents.registry import make_agent
from plimsoll.config.file import Config, absolute_scripts, load_config
from plimsoll.config.run import default_concurrency
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.diagnosis import RunContext, diagnose
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.evaluation.requests import read_request
from plimsoll.runs.evaluation.trial_run import (
    TrialSetRequest,
    TrialSetRun,
    evaluation_settings,
)
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Diagnosis, Summary
from plimsoll.runs.plan import SAME_EVERYWHERE, Plan, command_line, worker_variables
from plimsoll.runs.scheduling.trial_set import TrialGroup
from plimsoll.runs.task_sets import Candidates, Selection, TaskSet, select_tasks
from plimsoll.runs.validation.admission import AdmissionPolicy
from plimsoll.runs.validation.quarantine import Quarantine
from plimsoll.runs.validation.records import RecordFolder
from plimsoll.tasks.assets.plan import unstaged_requests
from plimsoll.tasks.assets.staged_assets import load_assets
from plimsoll.workers.worker.backends import check_compose, make_backend
from plimsoll.workers.worker.policy_service import policy_for

__all__ = ["EvalRequest", "EvalRun", "exit_code"]


def exit_code(summary: Summary) -> int:
    """0 if every trial is graded, 3 if any is void or the breaker stopped the run."""
    stopped = summary.breaker is not None and summary.breaker.stopped
    return 3 if summary.void or stopped else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest(TrialSetRequest):
    """The options of `plimsoll eval`."""

    agent: str
    attempts: int
    skip_invalid: bool
    validated: bool = False
    """Refuse to start unless every task is validated on the backend."""
    validation: Path | None = None
    """The folder of the validation, if not beside the tasks."""
    skip_quarantined: bool = False
    canary_every: int | None = None
    """Trials per canary: None chooses by the number of trials, 0 disables canaries."""
    keep_going: bool = False
    """Run to the end, ignoring the breaker."""
    policy: tuple[str, ...] = ()
    """URLs of the policy's servers, to override the config."""
    model: str | None = None
    """The policy's name at its servers, to override the config."""
    turns: int | None = None
    """The maximum number of answers per trial, to override the config."""
    layer: Path | None = None
    """The folder of baked agents, to override the config."""

    def command(self, *, keep_going: bool) -> str:
        """The command line that repeats the evaluation, in a new folder."""
        usual = default_concurrency()
        options: dict[str, object] = {
            "--agent": self.agent,
            "--backend": self.backend,
            "--attempts": self.attempts,
            "--concurrency": None if self.concurrency == usual else self.concurrency,
            "--workers": self.workers,
            "--engine": self.engine,
            "--pool": self.pool,
            "--task": self.pattern,
            "--config": self.config,
            "--assets": self.assets,
            "--validation": self.validation,
            "--canary-every": self.canary_every,
            "--policy": self.policy,
            "--model": self.model,
            "--turns": self.turns,
            "--agent-layer": self.layer,
        }
        flags = {
            "--skip-invalid": self.skip_invalid,
            "--validated": self.validated,
            "--skip-quarantined": self.skip_quarantined,
            "--keep-going": keep_going,
        }
        return command_line("eval", self.path, options | flags)

    def validate_command(self) -> str:
        """The command line that validates the same tasks."""
        options: dict[str, object] = {
            "--backend": self.backend,
            "--task": self.pattern,
            "--config": self.config,
            "--assets": self.assets,
            "--out": self.validation,
        }
        return command_line("validate", self.path, options)


class EvalRun(TrialSetRun):
    """An evaluation that is checked and ready to run."""

    def __init__(
        self,
        request: EvalRequest,
        plan: Plan,
        selection: Selection,
        left_out: dict[str, str],
        *,
        resumes: bool,
    ) -> None:
        self.request = request
        self.selection = selection
        self.left_out = left_out
        """Quarantined tasks that do not run, with the reason."""
        tasks = plan.trained.admitted.values()
        groups = [
            TrialGroup(task, attempt=attempt)
            for attempt in range(1, request.attempts + 1)
            for task in tasks
        ]
        limits = BreakerLimits(
            tasks=len(tasks),
            group=request.attempts,
            expects_equal=plan.config.run.agent in SAME_EVERYWHERE,
            stops=not request.keep_going,
        )
        super().__init__(
            plan,
            groups,
            breaker=Breaker(limits),
            request=request,
            out=request.out,
            kind="eval",
            resumes=resumes,
        )

    @classmethod
    def prepare(cls, request: EvalRequest, *, resumes: bool = False) -> "EvalRun":
        """Check everything that can be checked before anything is started."""
        if request.is_elsewhere:
            request = replace(request, path=request.path.absolute())
        config = _effective(request, load_config(request.config))
        agent = make_agent(request.agent, layer=request.layer or config.agents.folder)
        # With the options of the command line: an agent without a policy takes no --policy.
        policy = policy_for(agent, config.policy, request.policy, request.model, request.turns)
        make_backend(request.backend, config)
        assets = load_assets(config.assets.path)
        selection = select_tasks(
            request.path, pattern=request.pattern, skip_invalid=request.skip_invalid
        )
        key = assets.key if assets is not None else ""
        candidates = Candidates(
            selection.tasks, request.path, request.backend, key, request.validation
        )
        admission = AdmissionPolicy(
            require_validation=request.validated or config.breaker.require_validation,
            allowed_share=config.breaker.allowed_share,
            skip_quarantined=request.skip_quarantined,
        )
        tasks, left_out = candidates.admit(admission, request.validate_command())
        if not request.is_elsewhere:
            check_compose(request.backend, tasks)
        canaries = candidates.canaries(tasks, request.canary_every, len(tasks) * request.attempts)
        # Before the directory is made: a run without a policy leaves no files behind.
        policy = None if policy is None else asyncio.run(policy.probed())
        plan = Plan(
            config=config,
            settings=evaluation_settings(request.concurrency),
            trained=TaskSet(
                candidates=candidates,
                tasks={task.name: task for task in selection.tasks},
                left_out=left_out,
            ),
            held_out=TaskSet(),
            canaries=canaries,
            assets=assets,
            policy=policy,
            served=None,
            environment=worker_variables(config.workers.env),
        )
        return cls(request, plan, selection, left_out, resumes=resumes)

    @classmethod
    def resume(cls, directory: RunDirectory, *, keep_going: bool = False) -> "EvalRun":
        """Continue the evaluation of a run directory."""
        request = read_request(directory, EvalRequest)
        keep_going = keep_going or request.keep_going
        # The run's own config has the options of these tables, and may have been edited since.
        made = replace(
            request,
            out=directory.path,
            config=directory.config,
            keep_going=keep_going,
            assets=None,
            pool=None,
            policy=(),
            model=None,
            turns=None,
            layer=None,
        )
        return cls.prepare(made, resumes=True)

    @property
    def urls(self) -> tuple[str, ...]:
        """The policy's servers; empty if the agent asks no policy."""
        return () if self.plan.policy is None else self.plan.policy.urls

    @property
    def summary(self) -> Summary:
        return self.summary_of(len(self.plan.trained.admitted))

    @property
    def quarantined(self) -> int:
        """The number of tasks to run that are on the quarantine list."""
        records = RecordFolder.of(self.request.path, self.request.validation)
        listed = Quarantine.load(records.folder)
        tasks = (t for t in self.selection.tasks if t.name not in self.left_out)
        keys = (records.key(task.path) for task in tasks)
        return sum(listed.reason(key, self.request.backend) is not None for key in keys)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the breaker's trip; None without one."""
        breaker, request = self.breaker, self.request
        if (trip := breaker.trip) is None:
            return None
        look, fetched = None, ()
        if (row := trip.example) is not None:
            look = str(self.directory.folder_of(row))
            task = next(task for task in self.selection.tasks if task.name == row.task)
            fetched = unstaged_requests(task, self.plan.assets)
        context = RunContext(
            path=shlex.quote(str(request.path)),
            validate=request.validate_command(),
            unstaged=fetched,
            again=request.command(keep_going=False),
            keep_going=request.command(keep_going=True),
        )
        return diagnose(trip, context, look=look, stopped=breaker.tripped)

    def finish(self) -> Summary:
        """Write the summary of the finished trials."""
        made = msgspec.structs.replace(self.summary, breaker=self.diagnosis, pool=self.pool)
        self._write_summary(made)
        return made


def _effective(request: EvalRequest, config: Config) -> Config:
    """The config with the options of the command line."""
    policy: dict[str, object] = {
        "urls": absolute_scripts(request.policy, Path.cwd()) or config.policy.urls,
        "model": request.model or config.policy.model,
        "turns": request.turns or config.policy.turns,
    }
    layer = config.agents.layer if request.layer is None else str(request.layer.absolute())
    return request.applied_to(config, agent=request.agent).model_copy(
        update={
            "policy": config.policy.model_copy(update=policy),
            "agents": config.agents.model_copy(update={"layer": layer}),
        }
    )
