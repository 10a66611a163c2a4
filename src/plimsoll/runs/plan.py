"""From a config to all that a run needs, checked before anything is started."""

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
from plimsoll.runs.breaker.admission import AdmissionPolicy
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.policy import Policy as BreakerPolicy
from plimsoll.runs.task_sets import TaskSet, check_left_out, linted
from plimsoll.tasks.assets.staged_assets import StagedAssets, load_assets
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task
from plimsoll.workers.worker.backends import check_compose, make_backend
from plimsoll.workers.worker.policy_service import PolicySpec, ServedPolicy, policy_for
from plimsoll.workers.worker.trajectory_store import check_writable

__all__ = ["SAME_EVERYWHERE", "Plan", "command_line", "validate_command", "worker_variables"]

SAME_EVERYWHERE = ("oracle", "nop")
"""Agents whose rewards are meant to be equal: that they are says nothing."""

_SERVED = ("tiny", "torch")
"""Policies that the trainer itself serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is going to do. Made by `make`."""

    config: Config
    settings: Settings
    trained: TaskSet
    held_out: TaskSet
    """What it is measured on, by [evaluation]."""
    canaries: Canaries | None
    assets: StagedAssets | None
    policy: PolicySpec | None
    """Who answers for the policy, where the agent asks one."""
    served: ServedPolicy | None
    """The same, where the caller serves it: of this process only, and not in the config."""
    environment: dict[str, str] = field(repr=False)
    """What workers get of this process's variables."""

    @classmethod
    def make(cls, config: Config, served: ServedPolicy | None = None) -> "Plan":
        """Check all that can be checked; raises what a person can mend."""
        config = _in_mode(config)
        _check_group(config)
        run, evaluation = config.run, config.evaluation
        if run.tasks is None:
            raise UsageError("the config names no tasks: say where they are with [run] tasks")
        if run.steps is None and run.epochs is None:
            raise UsageError("the config has no end: say how long with [run] steps or epochs")
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
        if config.workers.engine == "process":  # those of a cluster are on other hosts
            for tasks in (made.trained, made.held_out):
                check_compose(run.backend, tasks.admitted.values())
        if config.storage.trajectories is not None:
            check_writable(config.storage.trajectories)
        return made

    def validated(self) -> "Plan":
        """The same once every task was validated: without those that failed.

        Raises where those are most.
        """
        made = self._admit(require_validation=True)
        made = replace(made, trained=linted(made.trained), held_out=linted(made.held_out))
        for tasks in (made.trained, made.held_out):
            check_left_out(tasks, self.config.run.backend)
        return made

    async def surveyed(self) -> "Plan":
        """The same, with what the policy's servers can return: workers are told, and start without
        asking. Raises `PolicyError` where none of them serves."""
        if self.policy is None:
            return self
        key = None if self.served is None else self.served.key
        return replace(self, policy=await self.policy.surveyed(key))

    def _admit(self, *, require_validation: bool) -> "Plan":
        """By what is known of the tasks now."""
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
        """All of training that are there: what is under way of one that is left out now comes
        to its end."""
        return self.trained.tasks

    @property
    def left_out(self) -> dict[str, str]:
        """Tasks in quarantine, which do not run, with the reason; the held-out ones too."""
        held_out = {f"{name} (held-out)": why for name, why in self.held_out.left_out.items()}
        return {**self.trained.left_out, **held_out}

    @property
    def unknown_keys(self) -> tuple[UnknownKey, ...]:
        return self.trained.unknown_keys + self.held_out.unknown_keys

    def order(self) -> DataOrder:
        """Which task each prompt stands for."""
        run = self.config.run
        return DataOrder(sorted(self.trained.admitted), seed=run.seed, epochs=run.epochs)

    @property
    def steps(self) -> int | None:
        return self.config.run.steps

    def watched(self, *, stops: bool) -> BreakerPolicy:
        """What the run's breaker allows, and whether it stops it."""
        size = self.settings.group_size
        return BreakerPolicy.of_run(
            step=self.settings.batch_groups * size,
            # A critic learns from groups whose members all get the same, too.
            group=1 if self.config.training.algorithm == "ppo" else size,
            tasks=len(self.trained.admitted),
            expects_equal=self.config.run.agent in SAME_EVERYWHERE,
            stops=stops,
        )


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


def validate_command(config: Config, tasks: str | None = None) -> str:
    """The command line that validates the tasks of a run, or those in another folder."""
    options: dict[str, object] = {
        "--backend": config.run.backend,
        "--assets": config.assets.folder,
    }
    return command_line("validate", Path(tasks or config.run.tasks or ""), options)


def _in_mode(config: Config) -> Config:
    """With the depth and the bound on age that the mode of training stands for."""
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
            f'[training] policy = "{trained}" trains what servers of your own generate with: name '
            "them as [policy] urls"
        )
    return policy_for(agent, config.policy, urls, None if served is None else served.model, None)


def _load(path: str | None, key: str, config: Config, assets: StagedAssets | None) -> TaskSet:
    if path is None:
        return TaskSet()
    staged = assets.key if assets is not None else ""
    return TaskSet.load(path, config.run.backend, staged, key=key)


def _trials(config: Config, tasks: int) -> int:
    """How many trials a run will have, at least."""
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
