"""A task and its steps, as the rest of Plimsoll sees them.

Every task has at least one step: a single-step task has one called "main", made of the
task's own folders. What a step says is already laid over what the task says. Files are
looked at only when asked for, so that thousands of tasks load at once.

Lays what each step says over what its task says, field by field.
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
"""What the step of a single-step task is called."""

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
    """Where the step's own files are; the task's folder in a single-step task."""
    agent: AgentConfig
    verifier: VerifierConfig
    agent_network: NetworkPolicy
    verifier_network: NetworkPolicy
    separate_verifier: bool
    """The verifier runs in a sandbox of its own."""
    verifier_environment: EnvironmentConfig | None
    """What that sandbox is made of, where the task says so."""
    min_reward: float | Mapping[str, float] | None
    """What must be reached for the next step to run."""
    healthcheck: HealthcheckConfig | None
    artifacts: tuple[ArtifactConfig, ...]

    @property
    def instruction(self) -> str:
        """The text for the agent, without the canary comments at its head."""
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
        """The task's tests, then the step's own, whose files replace those of the same name."""
        folders = (self.task_folder / "tests", self.folder / "tests")
        return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())

    @property
    def test_script(self) -> Path | None:
        return self._last_test_file("test.sh")

    @property
    def verifier_dockerfile(self) -> Path | None:
        """The image of a separate verifier, where the tests bring one."""
        return self._last_test_file("Dockerfile")

    @property
    def solution_dir(self) -> Path | None:
        return _folder(self.folder / "solution")

    @property
    def workdir(self) -> Path | None:
        """Files that are put into the sandbox before the step begins."""
        return _folder(self.folder / "workdir") if self.folder != self.task_folder else None

    def _last_test_file(self, name: str) -> Path | None:
        files = (folder / name for folder in reversed(self.tests_dirs))
        return next((file for file in files if file.is_file()), None)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A task folder that was found to be valid."""

    path: Path
    name: str
    """Unique among the tasks that were loaded together."""
    config: TaskConfig
    unknown_keys: tuple[UnknownKey, ...]
    steps: tuple[Step, ...]

    @property
    def file(self) -> Path:
        return self.path / "task.toml"

    @property
    def title(self) -> str | None:
        """What the task is called where it is published, e.g. "org/name"."""
        return self.config.task.name if self.config.task else None

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
        """The baseline that the phases override."""
        return self.config.environment.network or PUBLIC

    @property
    def artifacts(self) -> tuple[ArtifactConfig, ...]:
        return self.config.artifacts

    @property
    def solution_env(self) -> Mapping[str, str]:
        return self.config.solution.env

    @property
    def environment_dir(self) -> Path:
        return self.path / "environment"

    @property
    def dockerfile(self) -> Path | None:
        """`environment.docker_image`, where it is set, comes before it."""
        return _file(self.environment_dir / "Dockerfile")

    @property
    def compose_file(self) -> Path | None:
        return _file(self.environment_dir / "docker-compose.yaml")


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None


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
