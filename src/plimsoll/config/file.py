"""The config file, `plimsoll.toml`: all its tables are optional.

- [local], [docker], [pool], [assets]: see `config/sandboxes.py`.
- [policy], [agents]: see `config/policy.py`.
- [run], [breaker], [workers], [storage]: see `config/run.py`.
- [training], [evaluation], [metrics]: see `config/training.py`.

A relative path is relative to the file. An unknown key is an error.
"""

import tomllib
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from pydantic import Field, ValidationError

from plimsoll.config.policy import AgentsConfig, PolicyConfig
from plimsoll.config.problems import describe_problem, location
from plimsoll.config.run import BreakerConfig, RunConfig, StorageConfig, WorkersConfig
from plimsoll.config.sandboxes import AssetsConfig, DockerConfig, LocalConfig, PoolConfig
from plimsoll.config.table import Table
from plimsoll.config.training import EvaluationConfig, MetricsConfig, TrainingConfig
from plimsoll.core.errors import UsageError
from plimsoll.core.host_names import check_host_names

__all__ = ["Config", "absolute_scripts", "load_config"]

DEFAULT = Path("plimsoll.toml")
_SCRIPT = "scripted:"
_PATHS = {
    "local": ("home",),
    "docker": ("certificates",),
    "assets": ("folder",),
    "agents": ("layer",),
    "run": ("tasks",),
    "storage": ("ledger",),
    "training": ("model", "reference", "weights"),
    "evaluation": ("tasks",),
}
"""The keys of each table that are paths."""


class Config(Table):
    """All tables of the file."""

    local: LocalConfig = Field(default_factory=LocalConfig)
    docker: DockerConfig = Field(default_factory=DockerConfig)
    pool: PoolConfig = Field(default_factory=PoolConfig)
    assets: AssetsConfig = Field(default_factory=AssetsConfig)
    breaker: BreakerConfig = Field(default_factory=BreakerConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    agents: AgentsConfig = Field(default_factory=AgentsConfig)
    run: RunConfig = Field(default_factory=RunConfig)
    workers: WorkersConfig = Field(default_factory=WorkersConfig)
    storage: StorageConfig = Field(default_factory=StorageConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)


def load_config(file: Path | None) -> Config:
    """Load `file`; without one, `plimsoll.toml` of the current folder, else the defaults."""
    if file is None:
        if not DEFAULT.exists():
            return Config()
        file = DEFAULT
    try:
        text = file.read_text("utf-8-sig")
        data = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read the config {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: not valid TOML: {error}") from error
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems = (describe_problem(Config, file, text, problem) for problem in error.errors())
        raise UsageError("\n".join(problems)) from None
    return _resolved(config, file, text)


def absolute_scripts(urls: Iterable[str], base: Path) -> tuple[str, ...]:
    """The URLs of a policy, with the absolute paths of scripts."""
    return tuple(
        f"{_SCRIPT}{base / Path(url.removeprefix(_SCRIPT)).expanduser()}"
        if url.startswith(_SCRIPT)
        else url
        for url in urls
    )


def _resolved(config: Config, file: Path, text: str) -> Config:
    """Make paths absolute and check values that depend on each other or on the host."""
    base = file.resolve().parent

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(base / Path(path).expanduser())

    changed: dict[str, Table] = {}
    for name, path_keys in _PATHS.items():
        table: Table = getattr(config, name)
        given = {key: path for key in path_keys if (path := getattr(table, key)) is not None}
        paths = {key: absolute(path) for key, path in given.items()}
        changed[name] = table.model_copy(update=paths)
    roots = {name: str(base / Path(root).expanduser()) for name, root in config.local.roots.items()}
    changed["local"] = changed["local"].model_copy(update={"roots": roots})
    urls = absolute_scripts(config.policy.urls, base)
    changed["policy"] = config.policy.model_copy(update={"urls": urls})
    stored = config.storage.trajectories
    if stored is not None and "://" not in stored:
        update = {"trajectories": absolute(stored)}
        changed["storage"] = changed["storage"].model_copy(update=update)
    resolved = config.model_copy(update=changed)
    _check_paths(resolved.local, file, text)
    _check_docker(resolved.docker, file, text)
    check_host_names(
        resolved.policy.media_hosts,
        f"{location(file, text, ('policy', 'media_hosts'))}: policy.media_hosts",
    )
    return resolved


def _check_paths(local: LocalConfig, file: Path, text: str) -> None:
    for name, root in local.roots.items():
        if not Path(root).is_dir():
            where = location(file, text, ("local", "roots", name))
            raise UsageError(f'{where}: local.roots: "{name}": {root} is not a folder')
    for path in local.host_paths or ():
        if not path.startswith("/"):
            where = location(file, text, ("local", "host_paths"))
            raise UsageError(f'{where}: local.host_paths: "{path}" is not an absolute path')


def _check_docker(docker: DockerConfig, file: Path, text: str) -> None:
    if docker.host and docker.context:
        where = location(file, text, ("docker", "context"))
        raise UsageError(f"{where}: docker.context: docker.host names a daemon, too; keep one")
    for name in docker.dns:
        try:
            ip_address(name)
        except ValueError:
            where = location(file, text, ("docker", "dns"))
            raise UsageError(
                f'{where}: docker.dns: "{name}" is not the address of a name server, such as '
                "10.0.0.2"
            ) from None
