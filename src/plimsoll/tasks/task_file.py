"""Model of task.toml: the Harbor task format 0.25, schema 1.4, with its older keys.

Unknown keys are kept in `model_extra` and reported. Env tables may refer to variables of the
host: `${NAME}` and `${NAME:-default}`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from plimsoll.core.errors import TaskError
from plimsoll.core.permissions import SYSTEM_CALLS, NetworkMode, NetworkPolicy
from plimsoll.tasks.field_types import (
    Count,
    Env,
    Host,
    MinReward,
    NonNegative,
    Positive,
    PositiveInt,
    SchemaVersion,
    StepName,
    Text,
    User,
    broken_rule,
    is_number,
    megabytes,
    unexpected,
)

__all__ = [
    "AgentConfig",
    "ArtifactConfig",
    "CollectConfig",
    "EnvironmentConfig",
    "HealthcheckConfig",
    "McpServer",
    "SolutionConfig",
    "StepConfig",
    "TaskConfig",
    "TaskInfo",
    "VerifierConfig",
    "resolve_env",
]

RewardStrategy = Literal["mean", "final"]


class Table(BaseModel):
    """A table of task.toml."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)


class NetworkTable(Table):
    """A table that may set a network policy: a mode and the hosts of an allowlist."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[Host, ...] = ()

    @model_validator(mode="after")
    def _hosts_and_mode_agree(self) -> Self:
        if self.network_mode is NetworkMode.ALLOWLIST:
            if not self.allowed_hosts:
                raise broken_rule(
                    'network_mode "allowlist" needs allowed_hosts with at least one host',
                    "network_mode",
                )
        elif self.allowed_hosts:
            raise broken_rule('allowed_hosts needs network_mode = "allowlist"', "allowed_hosts")
        return self

    @property
    def network(self) -> NetworkPolicy | None:
        """The network policy of this table; None if it sets none."""
        if self.network_mode is None:
            return None
        return NetworkPolicy(self.network_mode, self.allowed_hosts)


class HealthcheckConfig(Table):
    """A command that succeeds once the environment is ready."""

    command: Text
    interval_sec: Positive = 5.0
    timeout_sec: Positive = 30.0
    start_period_sec: NonNegative = 0.0
    start_interval_sec: Positive = 5.0
    retries: PositiveInt = 3


class McpServer(Table):
    """An MCP server for the agent."""

    name: Text
    transport: str | None = None
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()


class EnvironmentConfig(NetworkTable):
    """The image, limits and default network policy of a sandbox."""

    build_timeout_sec: Positive = 600.0
    docker_image: Text | None = None
    os: Annotated[
        Literal["linux", "windows"],
        BeforeValidator(lambda v: v.lower() if isinstance(v, str) else v),
    ] = "linux"
    cpus: Positive | None = None
    memory_mb: PositiveInt | None = None
    storage_mb: PositiveInt | None = None
    gpus: Count = 0
    gpu_types: tuple[Text, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    env: Env = Field(default_factory=dict)
    skills_dir: Text | None = None
    healthcheck: HealthcheckConfig | None = None
    workdir: Text | None = None

    @property
    def unsupported_keys(self) -> tuple[str, ...]:
        """The keys in use that agents do not support."""
        values = {"mcp_servers": self.mcp_servers, "skills_dir": self.skills_dir}
        return tuple(key for key, value in values.items() if value)

    @model_validator(mode="before")
    @classmethod
    def _read_older_keys(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        table = dict(cast(dict[str, object], data))
        _read_allow_internet(table)
        for key in ("memory", "storage"):
            _read_size(table, key)
        return table


def _read_allow_internet(table: dict[str, object]) -> None:
    if "allow_internet" not in table:
        return
    allowed = table.pop("allow_internet")
    if not isinstance(allowed, bool):
        raise unexpected("true or false", allowed, "allow_internet")
    mode = table.setdefault("network_mode", "public" if allowed else "no-network")
    if mode == ("no-network" if allowed else "public"):
        raise broken_rule(f'contradicts network_mode = "{mode}"; keep one', "allow_internet")


def _read_size(table: dict[str, object], key: str) -> None:
    if key not in table:
        return
    written = table.pop(key)
    size = megabytes(written)
    if size is None:
        raise unexpected('a size such as "512M" or "2G"', written, key)
    if table.setdefault(f"{key}_mb", size) != size:
        raise broken_rule(f"contradicts {key}_mb; keep one", key)


class AgentConfig(NetworkTable):
    """Settings of the agent's phase."""

    timeout_sec: Positive | None = None
    user: User | None = None


class CollectConfig(Table):
    """A command that collects files for the verifier before it runs."""

    command: Text
    service: Text = "main"
    timeout_sec: Positive = 60.0
    user: User | None = None


class VerifierConfig(NetworkTable):
    """Settings of the verifier's phase."""

    timeout_sec: Positive = 600.0
    env: Env = Field(default_factory=dict)
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentConfig | None = None
    collect: tuple[CollectConfig, ...] = ()

    @model_validator(mode="after")
    def _environment_and_mode_agree(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise broken_rule(
                'environment_mode "shared" contradicts the table verifier.environment; keep one',
                "environment_mode",
            )
        return self


def _artifact_table(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


class ArtifactConfig(Table):
    """A file or folder to keep after the trial."""

    source: Text
    destination: Text | None = None
    exclude: tuple[Text, ...] = ()
    service: Text = "main"


Artifact = Annotated[ArtifactConfig, BeforeValidator(_artifact_table)]
"""An artifact as a table, or as its source path alone."""


class StepConfig(Table):
    """One step of a multi-step task. Its settings override the task's, field by field."""

    name: StepName
    agent: AgentConfig = Field(default_factory=AgentConfig)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    min_reward: MinReward | None = None
    healthcheck: HealthcheckConfig | None = None
    artifacts: tuple[Artifact, ...] = ()


class SolutionConfig(Table):
    """Settings of the task's reference solution."""

    env: Env = Field(default_factory=dict)


def _author_table(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Author(Table):
    """An author of the task."""

    name: str
    email: str | None = None


class TaskInfo(Table):
    """Published name and description of the task."""

    name: Text
    version: Text | None = None
    description: str = ""
    authors: tuple[Annotated[Author, BeforeValidator(_author_table)], ...] = ()
    keywords: tuple[str, ...] = ()


class TaskConfig(Table):
    """The whole of task.toml."""

    schema_version: SchemaVersion = "1.4"
    source: str | None = None
    task: TaskInfo | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    solution: SolutionConfig = Field(default_factory=SolutionConfig)
    artifacts: tuple[Artifact, ...] = ()
    multi_step_reward_strategy: RewardStrategy = "mean"
    steps: tuple[StepConfig, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_older_version_key(cls, data: object) -> object:
        # With `schema_version` present, `version` is an unknown key and is reported as one.
        if not isinstance(data, dict):
            return data
        table = dict(cast(dict[str, object], data))
        if "version" in table and "schema_version" not in table:
            table["schema_version"] = table.pop("version")
        return table

    @model_validator(mode="after")
    def _step_names_are_unique(self) -> Self:
        seen: set[str] = set()
        for index, step in enumerate(self.steps):
            if step.name in seen:
                raise broken_rule(
                    f'an earlier step has the name "{step.name}" too', "steps", index, "name"
                )
            seen.add(step.name)
        return self

    @model_validator(mode="after")
    def _reward_range_is_a_range(self) -> Self:
        found: object = self.metadata.get("reward_range", [0, 1])
        bounds = cast(list[float], found) if isinstance(found, list) else []
        if not (len(bounds) == 2 and all(map(is_number, bounds)) and bounds[0] < bounds[1]):
            what = "[lowest, highest], two numbers in increasing order"
            raise unexpected(what, cast(object, found), "metadata", "reward_range")
        return self

    @model_validator(mode="after")
    def _system_calls_are_known(self) -> Self:
        found: object = self.metadata.get("system_calls", [])
        if not isinstance(found, list) or not set(map(str, cast(list[object], found))) <= {
            *SYSTEM_CALLS
        }:
            what = f"a list of any of {', '.join(SYSTEM_CALLS)}"
            raise unexpected(what, cast(object, found), "metadata", "system_calls")
        return self

    @property
    def system_calls(self) -> tuple[str, ...]:
        """The groups of system calls that the task needs and that sandboxes deny by default."""
        return tuple(sorted(set(map(str, self.metadata.get("system_calls", ())))))

    @property
    def reward_range(self) -> tuple[float, float]:
        """The range of valid rewards: `metadata.reward_range`, by default 0 to 1."""
        low, high = self.metadata.get("reward_range", (0.0, 1.0))
        return float(low), float(high)


REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def resolve_env(env: Mapping[str, str], host: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the table with host values filled in; `where` names its file and key in errors."""
    problems: list[str] = []

    def resolve(key: str, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            name, default = match.groups()
            found = host.get(name)
            if default is not None:
                return found or default
            if found is None:
                problems.append(
                    f"{where}.{key}: the variable {name} is not set; "
                    f"set it, or write ${{{name}:-default}}"
                )
                return ""
            return found

        return REFERENCE.sub(value, text)

    resolved = {key: resolve(key, text) for key, text in env.items()}
    if problems:
        raise TaskError(*problems)
    return resolved
