"""Lays what each step says over what its task says, field by field."""

from pathlib import Path
from typing import TypeVar

from plimsoll.core.network import PUBLIC, NetworkPolicy
from plimsoll.tasks.config import (
    NetworkTable,
    StepConfig,
    TaskConfig,
    VerifierConfig,
)
from plimsoll.tasks.task import ONLY_STEP, Step

__all__ = ["make_steps"]

T = TypeVar("T", bound=NetworkTable)


def make_steps(folder: Path, config: TaskConfig) -> tuple[Step, ...]:
    """The steps of a task; one where it does not name any."""
    if not config.steps:
        return (_make(folder, folder, config, StepConfig(name=ONLY_STEP)),)
    return tuple(_make(folder, folder / "steps" / own.name, config, own) for own in config.steps)


def _make(task_folder: Path, folder: Path, config: TaskConfig, own: StepConfig) -> Step:
    baseline = config.environment.network or PUBLIC
    separate = _is_separate(config.verifier, own.verifier)
    verifier = _overlay(config.verifier, own.verifier)
    environment = verifier.environment if separate else None
    return Step(
        name=own.name,
        task_folder=task_folder,
        folder=folder,
        agent=_overlay(config.agent, own.agent),
        verifier=verifier,
        agent_network=_network(baseline, config.agent, own.agent),
        verifier_network=_network(baseline, environment, config.verifier, own.verifier),
        separate_verifier=separate,
        verifier_environment=environment,
        min_reward=own.min_reward,
        healthcheck=own.healthcheck,
        artifacts=config.artifacts + own.artifacts,
    )


def _overlay(table: T, own: T) -> T:
    """Only what the step sets. A policy is one thing: a mode brings its own list of hosts."""
    set_here = own.model_fields_set
    if not set_here:
        return table
    changes = {key: getattr(own, key) for key in set_here}
    if "network_mode" in set_here:
        changes["allowed_hosts"] = own.allowed_hosts
    return table.model_copy(update=changes)


def _is_separate(table: VerifierConfig, own: VerifierConfig) -> bool:
    """The innermost word on it counts: a mode, or else an environment of its own."""
    for said in (own, table):
        if said.environment_mode is not None:
            return said.environment_mode == "separate"
        if said.environment is not None:
            return True
    return False


def _network(baseline: NetworkPolicy, *tables: NetworkTable | None) -> NetworkPolicy:
    """The last policy that is set."""
    policy = baseline
    for table in tables:
        policy = (table.network if table is not None else None) or policy
    return policy
