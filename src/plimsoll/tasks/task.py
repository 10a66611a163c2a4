"""A task and its steps, as the rest of Plimsoll sees them.

Every task has at least one step: a single-step task has one called "main", made of the
task's own folders. What a step says is already laid over what the task says. Files are
looked at only when asked for, so that thousands of tasks load at once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import TaskError
from plimsoll.core.network import PUBLIC, NetworkPolicy
from plimsoll.tasks.config import (
    AgentConfig,
    ArtifactConfig,
    EnvironmentConfig,
    HealthcheckConfig,
    RewardStrategy,
    TaskConfig,
    VerifierConfig,
)
from plimsoll.tasks.problems import UnknownKey

__all__ = ["ONLY_STEP", "Step", "Task"]

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
