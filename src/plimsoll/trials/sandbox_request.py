"""What a task's environment asks of a backend."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.core.errors import SandboxUnsupported
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import NetworkPolicy
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, Limits, Mount, SandboxSpec, Supplies
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.env_tables import resolve_env
from plimsoll.tasks.fetches.finder import find_fetches
from plimsoll.tasks.task import Step, Task
from plimsoll.tasks.task_file import EnvironmentConfig

__all__ = [
    "SandboxRequest",
    "agent_sandbox",
    "image_source",
    "labels_for",
    "sandbox_spec",
    "supplies_for",
    "task_env",
    "verifier_image_source",
]

_DAY = 24 * 3600.0
_UNLIMITED = 30 * _DAY
"""What an agent without a time limit is taken to need at most."""


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """A sandbox that a trial asks its backend for: first its image, then itself."""

    source: ImageSource
    spec: SandboxSpec

    @property
    def supplies(self) -> Supplies:
        return self.spec.supplies


def agent_sandbox(
    task: Task, labels: Labels, assets: StagedAssets | None, mounts: tuple[Mount, ...] = ()
) -> SandboxRequest:
    """The sandbox that the agent of a trial works in. `mounts` are the agent's own."""
    supplies = supplies_for(task, assets)
    spec = sandbox_spec(task, task.environment, task.network, labels, supplies)
    return SandboxRequest(image_source(task, supplies), replace(spec, mounts=mounts))


def check_supported(environment: EnvironmentConfig) -> None:
    """Refuse a task that counts on what no agent is given: its reward would be that of another."""
    for key in environment.not_given:
        raise SandboxUnsupported(
            f"the task gives its agent {key}, and agents are given none here: "
            f"take environment.{key} out where the task can be solved without, or leave it out"
        )


def labels_for(task: Task, run: str, attempt: int) -> Labels:
    """Whose a trial's sandboxes are. They expire a day after its last timeout can have passed:
    from where its owner cannot be asked, they are nobody's then."""
    expires = time.time() + _longest(task) + _DAY
    return Labels(run, f"{task.name}.{attempt}", this_process(), expires)


def _longest(task: Task) -> float:
    """The sum of a trial's timeouts."""
    seconds = task.environment.build_timeout_sec
    for step in task.steps:
        seconds += step.agent.timeout_sec or _UNLIMITED
        seconds += sum(hook.timeout_sec for hook in step.verifier.collect)
        seconds += step.verifier.timeout_sec
        if step.verifier_environment is not None:
            seconds += step.verifier_environment.build_timeout_sec
    return seconds


def supplies_for(task: Task, assets: StagedAssets | None) -> Supplies:
    """What staged assets mean for a task's sandboxes: a mirror of what it would fetch.

    Checkouts stand where the task would clone to, unless its image already has them there.
    """
    if assets is None:
        return Supplies()
    fetches = find_fetches(task)
    whole, *checkouts = assets.mounts(fetches)
    return Supplies(
        mounts=(
            Mount(whole.source, whole.target),
            *(Mount(m.source, m.target, unless_there=True) for m in checkouts),
        ),
        env=assets.env(fetches),
        path=assets.path_prefix,
        key=assets.key,
    )


def for_build(supplies: Supplies) -> Supplies:
    """Without checkouts: a build clones from the mirror, into the image."""
    mounts = tuple(mount for mount in supplies.mounts if not mount.unless_there)
    return replace(supplies, mounts=mounts)


def image_source(task: Task, supplies: Supplies) -> ImageSource:
    """The image of the agent's sandbox."""
    environment = task.environment
    _check_os(environment)
    return ImageSource(
        context=task.environment_dir,
        dockerfile=None if environment.docker_image else task.dockerfile,
        reference=environment.docker_image,
        compose=task.compose_file,
        build_timeout=environment.build_timeout_sec,
        supplies=for_build(supplies),
        system_calls=task.system_calls,
    )


def verifier_image_source(task: Task, step: Step, supplies: Supplies) -> ImageSource:
    """The image of a separate verifier: its own name, its own Dockerfile, or the task's."""
    own = step.verifier_environment
    if own is not None and own.docker_image:
        _check_os(own)
        return ImageSource(reference=own.docker_image, build_timeout=own.build_timeout_sec)
    dockerfile = step.verifier_dockerfile
    if dockerfile is None:
        return image_source(task, supplies)
    timeout = (own or task.environment).build_timeout_sec
    return ImageSource(
        dockerfile.parent,
        dockerfile,
        build_timeout=timeout,
        supplies=for_build(supplies),
        system_calls=task.system_calls,
    )


def _check_os(environment: EnvironmentConfig) -> None:
    if environment.os != "linux":
        raise SandboxUnsupported(f"the task wants {environment.os}; sandboxes run Linux")


def sandbox_spec(
    task: Task,
    environment: EnvironmentConfig,
    network: NetworkPolicy,
    labels: Labels,
    supplies: Supplies,
) -> SandboxSpec:
    """What a sandbox of a task is started with, the agent's or that of a separate verifier."""
    limits = Limits(
        cpus=environment.cpus,
        memory_mb=environment.memory_mb,
        storage_mb=environment.storage_mb,
        gpus=environment.gpus,
    )
    return SandboxSpec(
        labels=labels,
        network=network,
        limits=limits,
        env=task_env(environment.env, task.file, "environment.env"),
        workdir=environment.workdir,
        supplies=supplies,
        system_calls=task.system_calls,
    )


def task_env(env: Mapping[str, str], file: Path, table: str) -> dict[str, str]:
    """A task's variables, with the host's where they ask for them."""
    return resolve_env(env, os.environ, f"{file}: {table}")
