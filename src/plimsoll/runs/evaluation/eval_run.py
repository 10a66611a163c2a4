"""From what a person asks for to an evaluation that is ready to run, and its end."""

import contextlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from plimsoll.agents.protocol import Agent
from plimsoll.agents.registry import make_agent
from plimsoll.config.file import load_config
from plimsoll.config.run import default_concurrency
from plimsoll.runs.backends import check_compose, make_backend
from plimsoll.runs.breaker.admission import AdmissionPolicy
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.diagnosis import Circumstances, diagnose
from plimsoll.runs.breaker.policy import Policy
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation.eval_loop import Evaluation, Trial
from plimsoll.runs.policies import PolicyService, policy_for
from plimsoll.runs.pooling import hints_for, make_pool, measured
from plimsoll.runs.results import Diagnosis, Summary
from plimsoll.runs.task_sets import Candidates, Selection, select_tasks
from plimsoll.runs.tickets import CANARY_AGENT, Ticket
from plimsoll.runs.validation.quarantine import Quarantine
from plimsoll.runs.validation.records import RecordFolder
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.assets.plan import unstaged_requests
from plimsoll.tasks.assets.staged_assets import StagedAssets, load_assets
from plimsoll.trials.artifacts import Bounds
from plimsoll.trials.trial import TrialResult, run_trial

__all__ = ["SAME_EVERYWHERE", "EvalRun", "Request", "command_line", "exit_code", "trials_by"]

SAME_EVERYWHERE = ("oracle", "nop")
"""Agents whose rewards are meant to be equal: that they are says nothing."""


def exit_code(summary: Summary) -> int:
    """0 where every trial is graded, 3 where any is void or the breaker stopped the run."""
    stopped = summary.breaker is not None and summary.breaker.stopped
    return 3 if summary.void or stopped else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `plimsoll eval` was asked for."""

    path: Path
    agent: str
    backend: str
    attempts: int
    concurrency: int
    pattern: str | None
    out: Path | None
    config: Path | None
    skip_invalid: bool
    assets: Path | None = None
    """What is staged, if not where the config says."""
    validated: bool = False
    """Refuse to start unless every task is validated on the backend."""
    validation: Path | None = None
    """Where the validation is kept, if not beside the tasks."""
    skip_quarantined: bool = False
    canary_every: int | None = None
    """None leaves it to the number of trials; 0 is none."""
    keep_going: bool = False
    """Run to the end whatever the breaker finds."""
    pool: str | None = None
    """How sandboxes are used, if not as the config says."""
    policy: tuple[str, ...] = ()
    """Who answers for the policy, if not whom the config names."""
    model: str | None = None
    """The policy's name at its servers, if not as the config says."""
    turns: int | None = None
    """The most answers a trial may have, if not as the config says."""
    layer: Path | None = None
    """Where agents are baked, if not where the config says."""

    def command(self, *, keep_going: bool) -> str:
        """The command line that asks for it again, into a folder of its own."""
        usual = default_concurrency()
        options: dict[str, object] = {
            "--agent": self.agent,
            "--backend": self.backend,
            "--attempts": self.attempts,
            "--concurrency": None if self.concurrency == usual else self.concurrency,
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
        """The command line that validates the same tasks for it."""
        options: dict[str, object] = {
            "--backend": self.backend,
            "--task": self.pattern,
            "--config": self.config,
            "--assets": self.assets,
            "--out": self.validation,
        }
        return command_line("validate", self.path, options)


def command_line(command: str, path: Path, options: Mapping[str, object]) -> str:
    """A command for a shell. An option that is None or False is left out, True is a flag.

    One with several values is given once for each.
    """
    words = ["plimsoll", command, str(path)]
    for option, value in options.items():
        if value is True:
            words.append(option)
        elif isinstance(value, tuple):
            for one in cast("tuple[object, ...]", value):
                words += [option, str(one)]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return shlex.join(words)


def trials_by(
    agents: Mapping[str, Agent],
    backend: Backend,
    assets: StagedAssets | None,
    directory: RunDirectory,
    service: PolicyService | None = None,
    *,
    bounds: Bounds,
) -> Trial:
    """Runs tickets, each by the agent that it names."""

    async def trial(ticket: Ticket, on_phase: Callable[[str], None]) -> TrialResult:
        return await run_trial(
            ticket.task,
            attempt=ticket.attempt,
            agent=agents[ticket.agent],
            backend=backend,
            run=directory.name,
            directory=ticket.folder(directory),
            assets=assets,
            policy=None if service is None else service.policy,
            bounds=bounds,
            on_phase=on_phase,
        )

    return trial


@dataclass(frozen=True, slots=True)
class EvalRun:
    """An evaluation with everything that it needs."""

    request: Request
    agent: Agent
    backend: Pool
    assets: StagedAssets | None
    selection: Selection
    left_out: dict[str, str]
    """Tasks in quarantine that do not run, with the reason."""
    directory: RunDirectory
    evaluation: Evaluation
    service: PolicyService | None
    """What answers for the policy, where the agent asks one."""

    @classmethod
    def prepare(cls, request: Request) -> "EvalRun":
        """Check all that can be checked before anything is started."""
        config = load_config(request.config)
        agent = make_agent(request.agent, layer=request.layer or config.agents.folder)
        backend = make_pool(
            make_backend(request.backend, config),
            config.pool,
            reuse=request.pool,
            concurrency=request.concurrency,
        )
        assets = load_assets(request.assets or config.assets.path)
        selection = select_tasks(
            request.path, pattern=request.pattern, skip_invalid=request.skip_invalid
        )
        key = assets.key if assets is not None else ""
        candidates = Candidates(
            selection.tasks, request.path, request.backend, key, request.validation
        )
        policy = AdmissionPolicy(
            require_validation=request.validated or config.breaker.require_validation,
            allowed_share=config.breaker.allowed_share,
            skip_quarantined=request.skip_quarantined,
        )
        tasks, left_out = candidates.admit(policy, request.validate_command())
        check_compose(request.backend, tasks)
        canaries = candidates.canaries(tasks, request.canary_every, len(tasks) * request.attempts)
        wanted = policy_for(agent, config.policy, request.policy, request.model, request.turns)
        # Before there is a folder: a run that nobody would answer leaves nothing behind.
        wanted = None if wanted is None else wanted.checked()
        directory = RunDirectory.create(request.out, now=datetime.now())
        service = None if wanted is None else PolicyService(wanted, directory.blobs)
        agents = {"": agent, CANARY_AGENT: make_agent(CANARY_AGENT)}
        watched = Policy(
            tasks=len(tasks),
            group=request.attempts,
            expects_equal=agent.name in SAME_EVERYWHERE,
            stops=not request.keep_going,
        )
        evaluation = Evaluation(
            tasks,
            attempts=request.attempts,
            concurrency=request.concurrency,
            trial=trials_by(
                agents, backend, assets, directory, service, bounds=Bounds.of(config.storage)
            ),
            directory=directory,
            breaker=Breaker(watched),
            canaries=canaries,
            hints=hints_for(backend, directory.name, assets, agents.__getitem__),
        )
        return cls(
            request, agent, backend, assets, selection, left_out, directory, evaluation, service
        )

    async def run(self) -> None:
        async with self.service or contextlib.nullcontext(), self.backend:
            await self.evaluation.run()

    @property
    def quarantined(self) -> int:
        """How many of the tasks that run are on the quarantine list."""
        place = RecordFolder.of(self.request.path, self.request.validation)
        listed = Quarantine.load(place.folder)
        tasks = (t for t in self.selection.tasks if t.name not in self.left_out)
        keys = (place.key(task.path) for task in tasks)
        return sum(listed.reason(key, self.request.backend) is not None for key in keys)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why the breaker tripped, if it did."""
        breaker, request = self.evaluation.breaker, self.request
        if (trip := breaker.trip) is None:
            return None
        look, fetched = None, ()
        if (row := trip.example) is not None:
            look = str(self.directory.folder_of(row))
            task = next(task for task in self.selection.tasks if task.name == row.task)
            fetched = unstaged_requests(task, self.assets)
        around = Circumstances(
            path=shlex.quote(str(request.path)),
            validate=request.validate_command(),
            unstaged=fetched,
            again=request.command(keep_going=False),
            keep_going=request.command(keep_going=True),
        )
        return diagnose(trip, around, look=look, stopped=breaker.tripped)

    def finish(self) -> Summary:
        """Write the summary of what has finished, all of it or a part."""
        summary = replace(
            self.evaluation.summary, breaker=self.diagnosis, pool=measured(self.backend.stats)
        )
        self.directory.finish(summary)
        return summary
