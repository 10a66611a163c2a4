"""From a config to all that a run needs, checked before anything is started."""

import os
from dataclasses import dataclass
from pathlib import Path

from plimsoll.agents.registry import make_agent
from plimsoll.core.errors import UsageError
from plimsoll.ledger.order import DataOrder
from plimsoll.ledger.settings import Settings
from plimsoll.runs.backends import make_backend
from plimsoll.runs.breaker.admission import AdmissionPolicy
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.candidates import Candidates
from plimsoll.runs.config import Config
from plimsoll.runs.evaluate import SAME_EVERYWHERE, command_line
from plimsoll.runs.policies import WantedPolicy, policy_for
from plimsoll.runs.run_config import ledger_settings
from plimsoll.runs.selection import select_tasks
from plimsoll.runs.storage import open_storage
from plimsoll.tasks.assets.manifest import Assets
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is going to do. Made by `make`."""

    config: Config
    settings: Settings
    tasks: dict[str, Task]
    """All that are there: what is under way of one that is left out now comes to its end."""
    left_out: dict[str, str]
    """Tasks in quarantine, which do not run, with the reason."""
    unknown_keys: tuple[UnknownKey, ...]
    canaries: Canaries | None
    assets: Assets | None
    policy: WantedPolicy | None
    """Who answers for the policy, where the agent asks one."""
    environment: dict[str, str]
    """What workers get of this process's variables."""

    @classmethod
    def make(cls, config: Config) -> "Plan":
        """Check all that can be checked; raises what a person can mend."""
        run = config.run
        if run.tasks is None:
            raise UsageError("the config names no tasks: say where they are with [run] tasks")
        if run.steps is None and run.epochs is None:
            raise UsageError("the config has no end: say how long to run with [run] steps")
        settings = ledger_settings(run, config.workers)
        agent = make_agent(run.agent, layer=config.agents.folder)
        policy = policy_for(agent, config.policy, (), None, None)
        make_backend(run.backend, config)
        if config.storage.trajectories is not None:
            open_storage(config.storage.trajectories)
        assets = config.load_assets(None)
        selection = select_tasks(Path(run.tasks), pattern=None, skip_invalid=False)
        key = assets.key if assets is not None else ""
        candidates = Candidates(selection.tasks, Path(run.tasks), run.backend, key)
        admission = AdmissionPolicy(
            require_validation=config.breaker.require_validation,
            allowed_share=config.breaker.allowed_share,
            skip_quarantined=True,
        )
        tasks, left_out = candidates.admit(admission, validate_command(config))
        return cls(
            config=config,
            settings=settings,
            tasks={task.name: task for task in selection.tasks},
            left_out=left_out,
            unknown_keys=selection.unknown_keys,
            canaries=candidates.canaries(tasks, run.canary_every, _trials(config, len(tasks))),
            assets=assets,
            policy=policy,
            environment=_environment(config.workers.env),
        )

    def order(self) -> DataOrder:
        """Which task each prompt stands for."""
        run = self.config.run
        names = sorted(self.tasks.keys() - self.left_out.keys())
        return DataOrder(names, seed=run.seed, epochs=run.epochs)

    @property
    def steps(self) -> int | None:
        return self.config.run.steps

    @property
    def expects_equal(self) -> bool:
        """Whether the agent's rewards are meant to be equal."""
        return self.config.run.agent in SAME_EVERYWHERE


def validate_command(config: Config) -> str:
    """The command line that validates the tasks of a run."""
    options: dict[str, object] = {
        "--backend": config.run.backend,
        "--assets": config.assets.folder,
    }
    return command_line("validate", Path(config.run.tasks or ""), options)


def _trials(config: Config, tasks: int) -> int:
    """How many trials a run will have, at least."""
    run = config.run
    groups = [tasks * run.epochs] if run.epochs is not None else []
    groups += [run.steps * run.batch_groups] if run.steps is not None else []
    return min(groups) * run.group_size


def _environment(names: tuple[str, ...]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UsageError(
            f"workers.env names {', '.join(missing)}, which this process does not have: "
            "export it, or leave it out"
        )
    return {name: os.environ[name] for name in names}
