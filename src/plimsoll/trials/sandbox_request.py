"""Sandbox requests: the images and sandboxes that a task needs from a backend."""

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
from plimsoll.tasks.fetches.finder import find_fetches
from plimsoll.tasks.task import Step, Task
from plimsoll.tasks.task_file import EnvironmentConfig, resolve_env

__all__ = [
    "SandboxRequest",
    "agent_sandbox",
    "check_supported",
    "image_source",
    "labels_for",
    "sandbox_spec",
    "supplies_for",
    "task_env",
    "verifier_image_source",
]

_DAY = 24 * 3600.0
_DEFAULT_AGENT_TIMEOUT = 30 * _DAY
"""Assumed maximum of an agent without a time limit."""


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """A sandbox that a trial requests from its backend: its image source and its spec."""

    source: ImageSource
    spec: SandboxSpec

    @property
    def supplies(self) -> Supplies:
        return self.spec.supplies


def agent_sandbox(
    task: Task, labels: Labels, assets: StagedAssets | None, mounts: tuple[Mount, ...] = ()
) -> SandboxRequest:
    """Return the request for the agent's sandbox. `mounts` are those of the agent."""
    supplies = supplies_for(task, assets)
    spec = sandbox_spec(task, task.environment, task.network, labels, supplies)
    return SandboxRequest(image_source(task, supplies), replace(spec, mounts=mounts))


def check_supported(environment: EnvironmentConfig) -> None:
    """Reject a task with settings that agents do not support: its reward would be misleading."""
    for key in environment.unsupported_keys:
        raise SandboxUnsupported(
            f"environment.{key} is not supported: "
            f"remove it if the task can be solved without it, or exclude the task"
        )


def labels_for(task: Task, run: str, attempt: int) -> Labels:
    """Return the labels of a trial's sandboxes.

    They expire one day after the last possible timeout of the trial. Hosts that cannot check
    the owner then treat the sandboxes as abandoned.
    """
    expires = time.time() + _total_timeout(task) + _DAY
    return Labels(run, f"{task.name}.{attempt}", this_process(), expires)


def _total_timeout(task: Task) -> float:
    """Return the sum of a trial's timeouts."""
    seconds = task.environment.build_timeout_sec
    for step in task.steps:
        seconds += step.agent.timeout_sec or _DEFAULT_AGENT_TIMEOUT
        seconds += sum(hook.timeout_sec for hook in step.verifier.collect)
        seconds += step.verifier.timeout_sec
        if step.verifier_environment is not None:
            seconds += step.verifier_environment.build_timeout_sec
    return seconds


def supplies_for(task: Task, assets: StagedAssets | None) -> Supplies:
    """Return the mounts and variables of staged assets for a task's sandboxes.

    Checkouts are mounted at the paths that the task clones to, unless its image has them.
    """
    if assets is None:
        return Supplies()
    fetches = find_fetches(task)
    folder, *checkouts = assets.mounts(fetches)
    return Supplies(
        mounts=(
            Mount(folder.source, folder.target),
            *(Mount(m.source, m.target, unless_there=True) for m in checkouts),
        ),
        env=assets.env(fetches),
        path=assets.path_prefix,
        key=assets.key,
    )


def _for_build(supplies: Supplies) -> Supplies:
    """Return supplies without checkouts: a build clones from the mirror into the image."""
    mounts = tuple(mount for mount in supplies.mounts if not mount.unless_there)
    return replace(supplies, mounts=mounts)


def image_source(task: Task, supplies: Supplies) -> ImageSource:
    """Return the image of the agent's sandbox."""
    environment = task.environment
    _check_os(environment)
    return ImageSource(
        context=task.environment_dir,
        dockerfile=None if environment.docker_image else task.dockerfile,
        reference=environment.docker_image,
        compose=task.compose_file,
        build_timeout=environment.build_timeout_sec,
        supplies=_for_build(supplies),
        system_calls=task.system_calls,
    )


def verifier_image_source(task: Task, step: Step, supplies: Supplies) -> ImageSource:
    """Return the image of a separate verifier: named, its own Dockerfile, or the task's."""
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
        supplies=_for_build(supplies),
        system_calls=task.system_calls,
    )


def _check_os(environment: EnvironmentConfig) -> None:
    if environment.os != "linux":
        raise SandboxUnsupported(f"the task needs {environment.os}; sandboxes run Linux")


def sandbox_spec(
    task: Task,
    environment: EnvironmentConfig,
    network: NetworkPolicy,
    labels: Labels,
    supplies: Supplies,
) -> SandboxSpec:
    """Return the spec of a task's sandbox, for the agent or for a separate verifier."""
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
    """Resolve an env table of a task with the variables of the host."""
    return resolve_env(env, os.environ, f"{file}: {table}")
