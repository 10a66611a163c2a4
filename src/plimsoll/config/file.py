"""The configuration that a person writes: `plimsoll.toml`, all of it optional.

    [local]
    roots = { "python:3.12-slim" = "/srv/rootfs/py312" }
    host_paths = ["/opt"]
    home = "~/.cache/plimsoll"
    allow_system_calls = ["user-namespaces"]

    [docker]
    host = "tcp://build-7.example.org:2376"
    certificates = "~/.docker/build-7"

    [pool]
    reuse = "reset"

    [assets]
    folder = "/mnt/shared/assets"

    [breaker]
    require_validation = true

    [policy]
    urls = ["http://gpu-1:8000/v1", "http://gpu-2:8000/v1"]
    model = "qwen3-8b"

    [agents]
    layer = "/mnt/shared/agents"

[run], [workers] and [storage] are for `plimsoll run`: see `runs/run_config.py`; [training],
[evaluation] and [metrics] for training: see `runs/training_config.py`.

A relative path is relative to the file. A key that is not known is an error, never ignored.
"""

import difflib
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic_core import ErrorDetails

from plimsoll.config.run import RunConfig, StorageConfig, WorkersConfig
from plimsoll.config.table import Table, keys
from plimsoll.config.training import EvaluationConfig, MetricsConfig, TrainingConfig
from plimsoll.core.errors import UsageError
from plimsoll.core.permissions import SystemCalls
from plimsoll.core.toml_lines import KeyPath, line_of, show_key
from plimsoll.gateway.media_hosts import check_host_names
from plimsoll.sandboxes.local.host.upper_storage import DEFAULT_UPPER_MB
from plimsoll.sandboxes.pool.options import DEFAULT_USES
from plimsoll.tasks.assets.staged_assets import StagedAssets

__all__ = ["Config", "DockerConfig", "LocalConfig", "PolicyConfig", "PoolConfig", "load_config"]

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
EXPECTED = {
    "string_type": "text",
    "dict_type": "a table",
    "model_type": "a table",
    "tuple_type": "a list",
    "bool_type": "true or false",
}
_NUMBERS = {
    "int_type",
    "float_type",
    "finite_number",
    "greater_than",
    "greater_than_equal",
    "less_than_equal",
}
"""What is said of a number that is none, or is out of bounds."""


class LocalConfig(Table):
    """What the local backend is given. None leaves the choice to the backend."""

    roots: dict[str, StrictStr] = Field(default_factory=dict)
    """Which folder holds the root file system that a `FROM` name stands for."""
    host_paths: tuple[StrictStr, ...] | None = None
    """What a sandbox on the host's own system sees of it besides /usr and the like."""
    home: StrictStr | None = None
    """Where layers and sandboxes are kept."""
    allow_system_calls: tuple[SystemCalls, ...] = ()
    """The system calls, usually denied, that a task gets if its `metadata.system_calls` asks."""
    upper: Literal["auto", "tmpfs", "disk"] = "auto"
    """Where the files that sandboxes write are kept: in memory, or on the disk of `home`."""
    upper_mb: StrictInt = Field(default=DEFAULT_UPPER_MB, ge=16)
    """What the files of one sandbox may take in memory."""


class DockerConfig(Table):
    """Which Docker engine runs sandboxes. Without any of it: DOCKER_HOST, contexts, sockets."""

    host: StrictStr | None = None
    """`unix://`, `tcp://` with certificates, or `ssh://`."""
    context: StrictStr | None = None
    """The name of a Docker context."""
    certificates: StrictStr | None = None
    """The folder with ca.pem, cert.pem and key.pem for `host`."""
    allow_plain: tuple[StrictStr, ...] = ()
    """Hosts that may be spoken to without TLS. Whoever reaches such an engine is root there."""
    dns: tuple[StrictStr, ...] = ()
    """Name servers for sandboxes that have a network; without any, the engine's own."""
    keep_images_gb: StrictFloat = Field(default=50.0, gt=0)
    """Built images beyond this are removed, those unused for longest first."""
    keep_images_days: StrictFloat = Field(default=14.0, gt=0)
    """Built images unused for longer are removed."""
    wait_seconds: StrictFloat = Field(default=60.0, ge=0)
    """How long a start waits for a daemon that is away, as while it restarts."""
    runtime: StrictStr | None = None
    """The OCI runtime of sandboxes, such as "runsc"; without it, the daemon's default."""


class PoolConfig(Table):
    """How sandboxes are used. What is left out is as usual for the backend."""

    reuse: Literal["none", "fresh", "reset"] | None = None
    """Started when asked for; started ahead and used once; or reset and used again."""
    uses: StrictInt = Field(default=DEFAULT_USES, ge=1)
    """After so many uses a sandbox is retired."""
    ahead: StrictInt | None = Field(default=None, ge=0)
    """The most sandboxes that wait for a trial; as many as run at once where it is left out."""


class AssetsConfig(Table):
    """What is staged for sandboxes without a network."""

    folder: StrictStr | None = None
    """Where `plimsoll stage` put it."""


class BreakerConfig(Table):
    """What must hold before a run starts."""

    require_validation: StrictBool = False
    """Every task is validated on the backend."""
    allowed_share: StrictFloat = Field(default=0.0, ge=0.0, le=1.0)
    """The largest share of tasks that may run although they are not."""


class PolicyConfig(Table):
    """Who answers for the policy, and what a trial may ask of it."""

    urls: tuple[StrictStr, ...] = ()
    """Replicas of one OpenAI-compatible server, or one `scripted:FILE`."""
    model: StrictStr | None = None
    """The name that the servers know it by; their only model where it is left out."""
    seed: StrictInt | None = None
    """What answers are sampled with, beside the trial and the turn: one that is lost and run
    again is answered as before, and replicas that were started alike do not answer a group alike.
    Where it is left out a run that trains takes [training] seed, any other the servers' choice."""
    seeded: StrictBool = True
    """Whether requests carry such a seed. Servers may sample slower with one."""
    sampling: Literal["model", "asked"] | None = None
    """`model`: answers are sampled from the model as it is, at temperature 1 and without cut-offs
    and penalties, whatever agents ask for and servers do by default: log probabilities know of
    neither. `asked`: as agents ask, and servers do by default. Where it is left out a run that
    trains takes `model`, any other `asked`."""
    turns: StrictInt | None = Field(default=None, ge=1)
    """The most answers a trial may have."""
    tokens: StrictInt | None = Field(default=None, ge=1)
    """The most tokens a trial may use, prompts and answers."""
    concurrent: StrictInt = Field(default=16, ge=1)
    """Requests that one trial may have under way."""
    body_mb: StrictInt = Field(default=32, ge=1)
    """The largest request, in MiB, after it is decompressed."""
    media_hosts: tuple[StrictStr, ...] = ()
    """Hosts that requests may name images, audio and video of by URL, such as `*.example.org` for
    all names below one. The policy's servers fetch them. Without any: `data:` URLs alone."""


class AgentsConfig(Table):
    """Where agents come from."""

    layer: StrictStr | None = None
    """The folder that `plimsoll bake` made."""

    @property
    def folder(self) -> Path | None:
        return None if self.layer is None else Path(self.layer)


class Config(Table):
    """The whole file."""

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

    def load_assets(self, given: Path | None) -> StagedAssets | None:
        """The assets in the given folder, or in the one that the config names."""
        folder = given or (Path(self.assets.folder) if self.assets.folder else None)
        if folder is None:
            return None
        assets = StagedAssets.load(folder)
        if missing := assets.missing():
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise UsageError(
                f"{folder / missing[0]}: missing{more}, and assets.toml names it; "
                f"`plimsoll stage TASKS --to {folder}` mends it"
            )
        return assets


def load_config(file: Path | None) -> Config:
    """Read `file`; without one, `plimsoll.toml` here if it is there; else the defaults."""
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
        problems = (_describe(file, text, problem) for problem in error.errors())
        raise UsageError("\n".join(problems)) from None
    return _with_paths(config, file, text)


def _with_paths(config: Config, file: Path, text: str) -> Config:
    """Make paths absolute, and refuse those that cannot be meant."""
    base = file.resolve().parent

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(base / Path(path).expanduser())

    changed: dict[str, Table] = {}
    for name, of_table in _PATHS.items():
        table: Table = getattr(config, name)
        given = {key: path for key in of_table if (path := getattr(table, key)) is not None}
        paths = {key: absolute(path) for key, path in given.items()}
        changed[name] = table.model_copy(update=paths)
    roots = {name: str(base / Path(root).expanduser()) for name, root in config.local.roots.items()}
    changed["local"] = changed["local"].model_copy(update={"roots": roots})
    urls = tuple(
        f"{_SCRIPT}{absolute(url.removeprefix(_SCRIPT))}" if url.startswith(_SCRIPT) else url
        for url in config.policy.urls
    )
    changed["policy"] = config.policy.model_copy(update={"urls": urls})
    stored = config.storage.trajectories
    if stored is not None and "://" not in stored:
        kept = {"trajectories": absolute(stored)}
        changed["storage"] = changed["storage"].model_copy(update=kept)
    made = config.model_copy(update=changed)
    _check_paths(made.local, file, text)
    _check_engine(made.docker, file, text)
    check_host_names(
        made.policy.media_hosts,
        f"{_location(file, text, ('policy', 'media_hosts'))}: policy.media_hosts",
    )
    return made


def _check_paths(local: LocalConfig, file: Path, text: str) -> None:
    for name, root in local.roots.items():
        if not Path(root).is_dir():
            place = _location(file, text, ("local", "roots", name))
            raise UsageError(f'{place}: local.roots: "{name}": {root} is not a folder')
    for path in local.host_paths or ():
        if not path.startswith("/"):
            place = _location(file, text, ("local", "host_paths"))
            raise UsageError(f'{place}: local.host_paths: "{path}" is not an absolute path')


def _check_engine(docker: DockerConfig, file: Path, text: str) -> None:
    if docker.host and docker.context:
        place = _location(file, text, ("docker", "context"))
        raise UsageError(f"{place}: docker.context: docker.host names an engine, too; keep one")
    for name in docker.dns:
        try:
            ip_address(name)
        except ValueError:
            place = _location(file, text, ("docker", "dns"))
            raise UsageError(
                f'{place}: docker.dns: "{name}" is not the address of a name server, such as '
                "10.0.0.2"
            ) from None


def _describe(file: Path, text: str, problem: ErrorDetails) -> str:
    path = problem["loc"]
    place = _location(file, text, path)
    if problem["type"] == "extra_forbidden":
        table = _table(path[:-1])
        assert table is not None, f"{path} is in no table of known keys"
        known = list(keys(table))
        close = difflib.get_close_matches(str([*path][-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{place}: unknown key {show_key(path)} ({hint})"
    expected = _expected(problem)
    said = f"expected {expected}" if expected else problem["msg"]
    return f"{place}: {show_key(path)}: {said}"


def _table(path: KeyPath) -> type[BaseModel] | None:
    """The table at a path of the file; None where its keys are a person's own."""
    table: type[BaseModel] = Config
    for key in path:
        found = keys(table)[str(key)].annotation
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return None
        table = found
    return table


def _expected(problem: ErrorDetails) -> str | None:
    kind = problem["type"]
    if kind == "literal_error":
        return str(problem.get("ctx", {})["expected"]).replace("'", "")
    return _number(problem["loc"]) if kind in _NUMBERS else EXPECTED.get(kind)


def _number(path: KeyPath) -> str:
    """Which number a key wants."""
    table, key = _table(path[:-1]), str(path[-1])
    if table is None or key not in keys(table):
        return "a number"  # of a table whose keys are a person's own
    field = keys(table)[key]
    bounds = {
        name: limit
        for bound in field.metadata
        for name in ("ge", "gt", "le")
        if (limit := getattr(bound, name, None)) is not None
    }
    noun = "a number" if field.annotation is float else "a whole number"
    match bounds:
        case {"ge": least, "le": most}:
            return f"{noun} from {least:g} to {most:g}"
        case {"ge": least}:
            return f"{noun}, {least:g} or more"
        case {"gt": least}:
            return f"{noun} above {least:g}"
        case _:
            return noun


def _location(file: Path, text: str, path: KeyPath) -> str:
    line = line_of(text, path)
    return str(file) if line is None else f"{file}:{line}"
