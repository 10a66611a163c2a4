"""The plan of a run: its config and all parts derived from it, checked before anything starts."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from plimsoll.agents.protocol import Agent
from plimsoll.agents.registry import make_agent
from plimsoll.config.file import Config
from plimsoll.core.errors import UsageError
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.settings import Settings, ledger_settings
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.task_sets import TaskSet, check_left_out, linted
from plimsoll.runs.validation.admission import AdmissionPolicy
from plimsoll.tasks.assets.staged_assets import StagedAssets, load_assets
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task
from plimsoll.workers.worker.backends import check_compose, make_backend
from plimsoll.workers.worker.policy_service import PolicySpec, ServedPolicy, policy_for
from plimsoll.workers.worker.trajectory_store import check_writable

__all__ = ["SAME_EVERYWHERE", "Plan", "command_line", "validate_command", "worker_variables"]

SAME_EVERYWHERE = ("oracle", "nop")
"""Agents whose rewards are expected to be equal, so equal rewards are no evidence of a fault."""

_SERVED = ("tiny", "torch")
"""Policies that the trainer itself serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run. Made by `make`."""

    config: Config
    settings: Settings
    trained: TaskSet
    held_out: TaskSet
    """The tasks of held-out evaluations, from [evaluation]."""
    canaries: Canaries | None
    assets: StagedAssets | None
    policy: PolicySpec | None
    """The policy's servers; None if the agent asks no policy."""
    served: ServedPolicy | None
    """The policy that the caller serves: known to this process only, and not in the config."""
    environment: dict[str, str] = field(repr=False)
    """Environment variables of this process that workers get."""

    @classmethod
    def make(cls, config: Config, served: ServedPolicy | None = None) -> "Plan":
        """Check everything that can be checked. Raises errors that the user can fix."""
        config = _in_mode(config)
        _check_group(config)
        run, evaluation = config.run, config.evaluation
        if run.tasks is None:
            raise UsageError("the config names no tasks: set [run] tasks")
        if run.steps is None and run.epochs is None:
            raise UsageError("the config has no end: set [run] steps or epochs")
        attempts = 1 if evaluation.tasks is None else evaluation.attempts
        settings = ledger_settings(run, config.workers, attempts=attempts)
        agent = make_agent(run.agent, layer=config.agents.folder)
        policy = _policy(config, agent, served)
        make_backend(run.backend, config)
        assets = load_assets(config.assets.path)
        made = cls(
            config=config,
            settings=settings,
            trained=_load(run.tasks, "[run] tasks", config, assets),
            held_out=_load(evaluation.tasks, "[evaluation] tasks", config, assets),
            canaries=None,
            assets=assets,
            policy=policy,
            served=served,
            environment=worker_variables(config.workers.env),
        )
        made = made._admit(require_validation=config.breaker.require_validation)
        if config.workers.engine == "process":  # workers of a cluster are on other hosts
            for tasks in (made.trained, made.held_out):
                check_compose(run.backend, tasks.admitted.values())
        if config.storage.trajectories is not None:
            check_writable(config.storage.trajectories)
        return made

    def validated(self) -> "Plan":
        """The plan after validation, without the tasks that failed.

        Raises if too many failed.
        """
        made = self._admit(require_validation=True)
        made = replace(made, trained=linted(made.trained), held_out=linted(made.held_out))
        for tasks in (made.trained, made.held_out):
            check_left_out(tasks, self.config.run.backend)
        return made

    async def probed(self) -> "Plan":
        """The plan with the features of the policy's servers, which workers get with it: they do
        not probe. Raises `PolicyError` if no server answers."""
        if self.policy is None or self.policy.found is not None:
            return self
        key = None if self.served is None else self.served.key
        return replace(self, policy=await self.policy.probed(key))

    def _admit(self, *, require_validation: bool) -> "Plan":
        """Admit tasks by their current validation status."""
        run, breaker = self.config.run, self.config.breaker
        policy = AdmissionPolicy(
            require_validation=require_validation,
            allowed_share=breaker.allowed_share,
            skip_quarantined=True,
        )
        trained = self.trained.admit(policy, validate_command(self.config))
        held_out = self.config.evaluation.tasks
        canaries = None
        if trained.candidates is not None:
            tasks = tuple(trained.admitted.values())
            trials = _trials(self.config, len(tasks))
            canaries = trained.candidates.canaries(tasks, run.canary_every, trials)
        return replace(
            self,
            trained=trained,
            held_out=self.held_out.admit(policy, validate_command(self.config, held_out)),
            canaries=canaries,
        )

    @property
    def tasks(self) -> Mapping[str, Task]:
        """All tasks of the training folder: live groups of a task that is now left out still
        finish."""
        return self.trained.tasks

    @property
    def left_out(self) -> dict[str, str]:
        """Quarantined tasks, which do not run, with the reason; held-out tasks too."""
        held_out = {f"{name} (held-out)": why for name, why in self.held_out.left_out.items()}
        return {**self.trained.left_out, **held_out}

    @property
    def unknown_keys(self) -> tuple[UnknownKey, ...]:
        return self.trained.unknown_keys + self.held_out.unknown_keys

    def order(self) -> DataOrder:
        """The order of the data: the task of each prompt."""
        run = self.config.run
        return DataOrder(sorted(self.trained.admitted), seed=run.seed, epochs=run.epochs)

    @property
    def steps(self) -> int | None:
        return self.config.run.steps

    def breaker_limits(self, *, stops: bool) -> BreakerLimits:
        """The limits of the run's breaker. `stops`: a trip stops the run."""
        size = self.settings.group_size
        return BreakerLimits.of_run(
            step=self.settings.batch_groups * size,
            # A critic also learns from groups whose members all get the same reward.
            group=1 if self.config.training.algorithm == "ppo" else size,
            tasks=len(self.trained.admitted),
            expects_equal=self.config.run.agent in SAME_EVERYWHERE,
            stops=stops,
        )


def command_line(command: str, path: Path, options: Mapping[str, object]) -> str:
    """A command for a shell. None and False omit an option, True makes it a flag.

    An option with several values is repeated for each.
    """
    arguments = ["plimsoll", command, str(path)]
    for option, value in options.items():
        if value is True:
            arguments.append(option)
        elif isinstance(value, tuple):
            for one in cast("tuple[object, ...]", value):
                arguments += [option, str(one)]
        elif value is not None and value is not False:
            arguments += [option, str(value)]
    return shlex.join(arguments)


def validate_command(config: Config, tasks: str | None = None) -> str:
    """The command line that validates the tasks of a run, or those in another folder."""
    options: dict[str, object] = {
        "--backend": config.run.backend,
        "--assets": config.assets.folder,
    }
    return command_line("validate", Path(tasks or config.run.tasks or ""), options)


def _in_mode(config: Config) -> Config:
    """Set the depth and the staleness bound of the training mode."""
    if config.training.policy is None or config.training.mode == "async":
        return config
    run = config.run
    for key in ("depth", "max_staleness"):
        if key in run.model_fields_set and getattr(run, key):
            raise UsageError(
                f'[training] mode = "sync" generates and trains in turn, and [run] {key} is '
                f"{getattr(run, key)}: leave it out, or choose async"
            )
    in_turn = run.model_copy(update={"depth": 0, "max_staleness": 0})
    return config.model_copy(update={"run": in_turn})


def _check_group(config: Config) -> None:
    training = config.training
    if training.policy is None or training.algorithm == "ppo" or config.run.group_size > 1:
        return
    raise UsageError(
        f"[run] group_size is 1, and {training.algorithm} compares the trials of a group with each "
        'other: nothing could be learned; give 2 or more (8 is usual), or algorithm = "ppo"'
    )


def _policy(config: Config, agent: Agent, served: ServedPolicy | None) -> PolicySpec | None:
    trained, urls = config.training.policy, () if served is None else served.urls
    if trained is not None and not agent.needs_policy:
        raise UsageError(
            f"the agent {agent.name} asks no policy, so there is nothing to train: choose another "
            "with [run] agent"
        )
    if config.policy.urls and (trained in _SERVED or urls not in ((), config.policy.urls)):
        who = f'[training] policy = "{trained}"' if trained in _SERVED else "the policy"
        raise UsageError(f"{who} is served by the trainer itself: leave [policy] urls out")
    if trained in _SERVED and not urls:
        raise UsageError(
            f'[training] policy = "{trained}" is served by the trainer: start it with '
            "`plimsoll run`, or give Rollouts the urls of your own"
        )
    if trained is not None and not (urls or config.policy.urls):
        raise UsageError(
            f'[training] policy = "{trained}" trains a model that your own servers generate with: '
            "name them in [policy] urls"
        )
    return policy_for(agent, config.policy, urls, None if served is None else served.model, None)


def _load(path: str | None, key: str, config: Config, assets: StagedAssets | None) -> TaskSet:
    if path is None:
        return TaskSet()
    staged = assets.key if assets is not None else ""
    return TaskSet.load(path, config.run.backend, staged, key=key)


def _trials(config: Config, tasks: int) -> int:
    """The least number of trials of a run."""
    run = config.run
    groups = [tasks * run.epochs] if run.epochs is not None else []
    groups += [run.steps * run.batch_groups] if run.steps is not None else []
    return min(groups) * run.group_size


def worker_variables(names: tuple[str, ...]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UsageError(
            f"workers.env names {', '.join(missing)}, which this process does not have: "
            "export it, or leave it out"
        )
    return {name: os.environ[name] for name in names}
