"""Task and its steps.

Every task has at least one step: a single-step task has one step "main" with the task's own
folders. The settings of a step override those of the task, field by field. Files are read on
demand, so that thousands of tasks load quickly.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plimsoll.core.errors import TaskError
from plimsoll.core.permissions import PUBLIC, NetworkPolicy
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task_file import (
    AgentConfig,
    ArtifactConfig,
    EnvironmentConfig,
    HealthcheckConfig,
    NetworkTable,
    RewardStrategy,
    StepConfig,
    TaskConfig,
    VerifierConfig,
)

__all__ = ["ONLY_STEP", "Step", "Task", "make_steps"]

ONLY_STEP = "main"
"""Name of the step of a single-step task."""

CANARY_HEAD = re.compile(
    r"(?:\s*(?:<!--(?:(?!-->).)*?canary.*?-->|\#[^\n]*?canary[^\n]*)[ \t]*(?:\r?\n|\Z))+",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One instruction for the agent, with the tests that grade it."""

    name: str
    task_folder: Path
    folder: Path
    """The step's own files; the task folder in a single-step task."""
    agent: AgentConfig
    verifier: VerifierConfig
    agent_network: NetworkPolicy
    verifier_network: NetworkPolicy
    separate_verifier: bool
    """The verifier runs in a sandbox of its own."""
    verifier_environment: EnvironmentConfig | None
    """The environment of that sandbox, if the task defines one."""
    min_reward: float | Mapping[str, float] | None
    """The reward that this step needs for the next step to run."""
    healthcheck: HealthcheckConfig | None
    artifacts: tuple[ArtifactConfig, ...]

    @property
    def instruction(self) -> str:
        """The text for the agent, without leading canary comments."""
        file = self.folder / "instruction.md"
        try:
            text = file.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            line = file.read_bytes().count(b"\n", 0, error.start) + 1
            raise TaskError(f"{file}:{line}: not UTF-8 text") from error
        except OSError as error:
            raise TaskError(f"{file}: cannot be read: {error.strerror}") from error
        head = CANARY_HEAD.match(text)
        return text[head.end() :].lstrip("\r\n") if head else text

    @property
    def tests_dirs(self) -> tuple[Path, ...]:
        """The task's tests, then the step's own; later files replace files of the same name."""
        folders = (self.task_folder / "tests", self.folder / "tests")
        return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())

    @property
    def test_script(self) -> Path | None:
        return self._last_test_file("test.sh")

    @property
    def verifier_dockerfile(self) -> Path | None:
        """The Dockerfile of a separate verifier, if the tests have one."""
        return self._last_test_file("Dockerfile")

    @property
    def solution_dir(self) -> Path | None:
        return _existing_folder(self.folder / "solution")

    @property
    def workdir(self) -> Path | None:
        """Files that are uploaded to the sandbox before the step begins."""
        return (
            _existing_folder(self.folder / "workdir") if self.folder != self.task_folder else None
        )

    def _last_test_file(self, name: str) -> Path | None:
        files = (folder / name for folder in reversed(self.tests_dirs))
        return next((file for file in files if file.is_file()), None)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A valid task folder."""

    path: Path
    name: str
    """Unique among the tasks loaded together."""
    config: TaskConfig
    unknown_keys: tuple[UnknownKey, ...]
    steps: tuple[Step, ...]

    @property
    def file(self) -> Path:
        return self.path / "task.toml"

    @property
    def is_multi_step(self) -> bool:
        return bool(self.config.steps)

    @property
    def reward_strategy(self) -> RewardStrategy:
        return self.config.multi_step_reward_strategy

    @property
    def reward_range(self) -> tuple[float, float]:
        return self.config.reward_range

    @property
    def system_calls(self) -> tuple[str, ...]:
        return self.config.system_calls

    @property
    def environment(self) -> EnvironmentConfig:
        return self.config.environment

    @property
    def network(self) -> NetworkPolicy:
        """The default network policy; phases may override it."""
        return self.config.environment.network or PUBLIC

    @property
    def solution_env(self) -> Mapping[str, str]:
        return self.config.solution.env

    @property
    def environment_dir(self) -> Path:
        return self.path / "environment"

    @property
    def dockerfile(self) -> Path | None:
        """The Dockerfile of the environment. `environment.docker_image` takes precedence."""
        return _existing_file(self.environment_dir / "Dockerfile")

    @property
    def compose_file(self) -> Path | None:
        return _existing_file(self.environment_dir / "docker-compose.yaml")


def _existing_folder(path: Path) -> Path | None:
    return path if path.is_dir() else None


def _existing_file(path: Path) -> Path | None:
    return path if path.is_file() else None


T = TypeVar("T", bound=NetworkTable)


def make_steps(folder: Path, config: TaskConfig) -> tuple[Step, ...]:
    """Build the steps of a task: one step if the task defines none."""
    if not config.steps:
        return (_make_step(folder, folder, config, StepConfig(name=ONLY_STEP)),)
    return tuple(
        _make_step(folder, folder / "steps" / own.name, config, own) for own in config.steps
    )


def _make_step(task_folder: Path, folder: Path, config: TaskConfig, own: StepConfig) -> Step:
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
    """Apply the fields that the step sets. A network mode brings its own list of hosts."""
    set_here = own.model_fields_set
    if not set_here:
        return table
    changes = {key: getattr(own, key) for key in set_here}
    if "network_mode" in set_here:
        changes["allowed_hosts"] = own.allowed_hosts
    return table.model_copy(update=changes)


def _is_separate(table: VerifierConfig, own: VerifierConfig) -> bool:
    """The innermost setting counts: a mode, or else an environment of its own."""
    for config in (own, table):
        if config.environment_mode is not None:
            return config.environment_mode == "separate"
        if config.environment is not None:
            return True
    return False


def _network(baseline: NetworkPolicy, *tables: NetworkTable | None) -> NetworkPolicy:
    """Return the last policy that is set."""
    policy = baseline
    for table in tables:
        policy = (table.network if table is not None else None) or policy
    return policy
