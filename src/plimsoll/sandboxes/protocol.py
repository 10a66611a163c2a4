"""The protocol that every backend implements: local, docker.

Invariants, tested once for all backends in `tests/sandboxes/test_protocol*.py`:

* A failed command is an `ExecResult`. A sandbox that is gone raises `SandboxUnavailable`.
* A command that timed out, or whose call was cancelled, leaves no process behind.
* Output is streamed and bounded: a command that prints a gigabyte does not take a gigabyte.
* No path and no link of an upload or a download leaves its target.
* `close` can be called any number of times. Afterwards no process of the sandbox runs, and its
  files are removed: soon, and at the latest when its backend is closed.
* A backend refuses settings that it cannot enforce (`SandboxUnsupported`), or lists them in
  `warnings`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from plimsoll.core.ids import Labels
from plimsoll.core.permissions import NO_NETWORK, NetworkPolicy
from plimsoll.sandboxes.output import Captured

__all__ = [
    "Backend",
    "ExecResult",
    "FullDisk",
    "Image",
    "ImageSource",
    "Limits",
    "Mount",
    "OnConnection",
    "OnOutput",
    "Resettable",
    "Sandbox",
    "SandboxSpec",
    "SandboxStatus",
    "ServedSocket",
    "Stream",
    "Supplies",
    "Transfer",
]

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]

OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection. An exception ends that connection only."""

KEEP_OUTPUT = 256 * 1024
"""Bytes of each stream that an `ExecResult` keeps by default."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that a sandbox sees read-only."""

    source: Path
    target: str
    unless_there: bool = False
    """Skip the mount if the image has something at the target."""
    key: str = ""
    """A digest of the source, if known. Saves reading the source to compute one."""


@dataclass(frozen=True, slots=True)
class Supplies:
    """Staged assets for sandboxes and image builds, besides the task's own files."""

    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    path: str = ""
    """Folders to put first in PATH."""
    key: str = ""
    """A digest of the mounts. It is part of the key of images built with them."""

    def env_over(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment extended by these supplies."""
        return self.path_over({**env, **self.env})

    def path_over(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment with the folders first in its PATH, once."""
        path = env.get("PATH", "")
        if not self.path or f"{path}:".startswith(f"{self.path}:"):
            return dict(env)
        return {**env, "PATH": ":".join(filter(None, (self.path, path)))}


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The source of a sandbox's file system: a Dockerfile in a context, or an image name.

    With `compose`, it is the image of the service `main`, which is started with the other services.
    """

    context: Path | None = None
    dockerfile: Path | None = None
    reference: str | None = None
    compose: Path | None = None
    build_timeout: float = 600.0
    supplies: Supplies = field(default_factory=Supplies)
    system_calls: tuple[str, ...] = ()
    """Groups of system calls, denied by default, that the build uses."""


class Image(Protocol):
    """A built image of a backend."""

    @property
    def key(self) -> str:
        """Identifies the content: equal keys mean equal file systems."""
        ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def workdir(self) -> str: ...

    @property
    def user(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a sandbox. None means no limit."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    pids: int | None = None
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The settings of a sandbox, besides its image."""

    labels: Labels
    network: NetworkPolicy = NO_NETWORK
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    mounts: tuple[Mount, ...] = ()
    supplies: Supplies = field(default_factory=Supplies)
    system_calls: tuple[str, ...] = ()
    """Groups of system calls, denied by default, that it uses. The names are those of
    `core/permissions.py`."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The outcome of a command. Exactly one of `exit_code` and `signal` is set."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    stdout: Captured
    stderr: Captured
    seconds: float

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out

    def describe(self) -> str:
        """The ending in a few words, for messages."""
        if self.timed_out:
            return f"timed out after {self.seconds:.1f} s"
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit {self.exit_code}"

    def complaint(self) -> str:
        """The failure with the last line of output, for error messages."""
        lines = (self.stderr.text.strip() or self.stdout.text.strip()).splitlines()
        last = f": {lines[-1].strip()[:200]}" if lines else ""
        return f"failed ({self.describe()}){last}"


@dataclass(frozen=True, slots=True)
class FullDisk:
    """A disk that was too full for the writes of a sandbox, which may explain a failure."""

    at: float
    """The last time it was found full, by `time.monotonic`."""
    why: str
    """A message that names the disk and the remedy."""


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """The state of a sandbox. `reason` says why it is not alive."""

    alive: bool
    reason: str = ""
    processes: int | None = None
    """Processes besides its init. None if unknown."""
    oom_kills: int | None = None
    """Processes killed by the kernel for lack of memory. None if unknown."""
    full_disk: FullDisk | None = None
    """The disk of its host, if it was ever found full: by this call, or by the check that runs once
    a second, also before the sandbox was started. A reached `storage_mb` is not a full disk."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The counts of an upload or a download. `skipped` has the omitted entries with the reasons."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


class ServedSocket(Protocol):
    """A socket that listens inside a sandbox and is served from outside."""

    @property
    def port(self) -> int: ...

    async def close(self) -> None:
        """Stop listening and end the connections. Idempotent."""
        ...


class Sandbox(Protocol):
    """An isolated environment for commands. Paths are absolute, in its own file system."""

    @property
    def id(self) -> str: ...

    @property
    def labels(self) -> Labels: ...

    @property
    def workdir(self) -> str:
        """The default working directory of commands."""
        ...

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        keep: int = KEEP_OUTPUT,
    ) -> ExecResult:
        """Run an argv, or a string with the sandbox's bash (sh if it has no bash).

        The call returns when the command's own process ends. Its background processes go on,
        except after a timeout or a cancelled call, when the whole process tree is killed.
        The result keeps at most `keep` bytes of each stream; `on_output` gets all of them.
        """
        ...

    async def upload(self, source: Path, target: str) -> Transfer:
        """Copy a file to the path `target`, or the content of a folder into the folder `target`."""
        ...

    async def download(
        self, source: str, target: Path, *, limit: int | None = None, entries: int | None = None
    ) -> Transfer:
        """Copy a file to the path `target`, or the content of a folder into the folder `target`.

        Links that point out of the folder, devices, sockets and entries with too long a path are
        skipped and listed. Holes in files and hard links are preserved, and do not count towards
        `limit`. Raises `TransferError` for more than `limit` bytes, for more than `entries` files,
        folders and links, and for a missing source.
        """
        ...

    async def empty(self, path: str, *, mode: int = 0o755) -> None:
        """Make `path` an empty folder. Whatever was there is removed: a link, a file, a tree."""
        ...

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Apply a policy to all commands from now on."""
        ...

    async def serve(self, port: int, on_connection: OnConnection) -> ServedSocket:
        """Listen on 127.0.0.1:`port` in the sandbox (0: any free port). Needs no network.

        An agent in a sandbox without a network reaches the gateway this way: `on_connection`
        serves each connection in this process.
        """
        ...

    async def kill_all(self) -> None:
        """Kill all processes except the sandbox's init, and wait until they are gone."""
        ...

    async def status(self) -> SandboxStatus: ...

    async def close(self) -> None:
        """End all its processes. Its files may still be in removal when this returns."""
        ...


class Resettable(Sandbox, Protocol):
    """A sandbox that can be reset to the state of its image, with a proof."""

    async def baseline(self) -> int:
        """Record a manifest of the current file system. Returns the number of entries."""
        ...

    async def reset(self) -> str:
        """Kill all processes and restore the file system to the baseline.

        Returns "" if it is proven that nothing of the last use is left, otherwise the doubt.
        """
        ...


class Backend(Protocol):
    """Builds images and starts sandboxes. Entering it reaps the leftovers of dead owners."""

    @property
    def name(self) -> str: ...

    @property
    def warnings(self) -> Sequence[str]:
        """Features that this host cannot provide or enforce. Each is shown once a run."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        """Build an image, or reuse the one built from an equal source."""
        ...

    async def create(self, image: Image, spec: SandboxSpec) -> Sandbox: ...
