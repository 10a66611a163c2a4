"""The protocol that every backend keeps: local, docker.

Invariants, tested once for all backends in `tests/sandboxes/test_protocol*.py`:

* A command that failed is an `ExecResult`. A sandbox that is gone is `SandboxUnavailable`.
* A command that timed out, or whose call was cancelled, leaves no process behind.
* Output is streamed and bounded: a gigabyte printed is not a gigabyte held.
* No path and no link of an upload or a download leaves its target.
* `close` can be called any number of times. Afterwards nothing of the sandbox runs, and what it
  wrote is removed: soon, and at the latest before its backend is left.
* What a backend cannot enforce it refuses (`SandboxUnsupported`) or lists in `warnings`.
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
    "Served",
    "Stream",
    "Supplies",
    "Transfer",
]

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]

OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection; what it raises ends that connection only."""

KEEP_OUTPUT = 256 * 1024
"""Bytes of each stream that an `ExecResult` keeps unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that a sandbox sees, read-only."""

    source: Path
    target: str
    unless_there: bool = False
    """Left out where the image has something at the target already."""
    key: str = ""
    """Changes with what the source holds, where somebody knows: then it is not read to find out."""


@dataclass(frozen=True, slots=True)
class Supplies:
    """What sandboxes and image builds get besides what the task brings: staged assets."""

    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    path: str = ""
    """Folders that come first in PATH."""
    key: str = ""
    """Changes with what the mounts hold; part of the key of what is built with them."""

    def env_over(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment with these supplies in it."""
        return self.path_over({**env, **self.env})

    def path_over(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment with the folders first in its PATH, once."""
        path = env.get("PATH", "")
        if not self.path or f"{path}:".startswith(f"{self.path}:"):
            return dict(env)
        return {**env, "PATH": ":".join(filter(None, (self.path, path)))}


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where a sandbox's file system comes from: a Dockerfile in a context, or a name.

    With `compose`, the image is that of the file's service `main`, which brings others along.
    """

    context: Path | None = None
    dockerfile: Path | None = None
    reference: str | None = None
    compose: Path | None = None
    build_timeout: float = 600.0
    supplies: Supplies = field(default_factory=Supplies)
    system_calls: tuple[str, ...] = ()
    """Groups of system calls that its build uses, though a sandbox is usually denied them."""


class Image(Protocol):
    """A built image, as its backend knows it."""

    @property
    def key(self) -> str:
        """Names the content: equal keys, equal file systems."""
        ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def workdir(self) -> str: ...

    @property
    def user(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use. None means as much as the host gives."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    pids: int | None = None
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox is started with, besides its image."""

    labels: Labels
    network: NetworkPolicy = NO_NETWORK
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    mounts: tuple[Mount, ...] = ()
    supplies: Supplies = field(default_factory=Supplies)
    system_calls: tuple[str, ...] = ()
    """Groups of system calls that it uses, though a sandbox is usually denied them; each is a
    name of `core/system_calls.py`."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. Exactly one of `exit_code` and `signal` is set."""

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
        """How it ended, in a few words for a person."""
        if self.timed_out:
            return f"timed out after {self.seconds:.1f} s"
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit {self.exit_code}"

    def complaint(self) -> str:
        """How it failed, with the last line that it printed, for an error's message."""
        said = (self.stderr.text.strip() or self.stdout.text.strip()).splitlines()
        last = f": {said[-1].strip()[:200]}" if said else ""
        return f"failed ({self.describe()}){last}"


@dataclass(frozen=True, slots=True)
class FullDisk:
    """A disk that had no room for what a sandbox writes. What failed then may have failed of it."""

    at: float
    """When it was last found so, by `time.monotonic`."""
    why: str
    """Which disk it is and what to do, for a person."""


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """Whether a sandbox is alive, and why not."""

    alive: bool
    reason: str = ""
    processes: int | None = None
    """Processes in it besides its own init; None where that is not known."""
    oom_kills: int | None = None
    """How often the kernel killed a process of it for memory; None where not known."""
    full_disk: FullDisk | None = None
    """The disk of its host, where that was ever found full: just now, or by a look at it every
    second, before the sandbox was started too. Its own `storage_mb` is not the host's disk."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What an upload or a download carried, and what it left out for safety, with why."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


class Served(Protocol):
    """A socket that listens inside a sandbox, served from outside of it."""

    @property
    def port(self) -> int: ...

    async def close(self) -> None:
        """Stop listening, and end the connections. May be called again."""
        ...


class Sandbox(Protocol):
    """A place where commands run. Paths are absolute, in the sandbox's file system."""

    @property
    def id(self) -> str: ...

    @property
    def labels(self) -> Labels: ...

    @property
    def workdir(self) -> str:
        """Where commands start unless told otherwise."""
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
        """Run an argv, or a string by the sandbox's bash (its sh where it has no bash).

        It ends when the command's own process ends; what that left running goes on, except
        after a timeout or a cancelled call, when the whole tree is killed.
        `keep` bounds what the result holds of each stream; `on_output` sees all of it.
        """
        ...

    async def upload(self, source: Path, target: str) -> Transfer:
        """Carry a file to the path `target`, or a folder's content into the folder `target`."""
        ...

    async def download(
        self, source: str, target: Path, *, limit: int | None = None, entries: int | None = None
    ) -> Transfer:
        """Carry a file to the path `target`, or a folder's content into the folder `target`.

        Links that point out of the folder, devices and sockets are left out and listed, and so is
        what has too long a path. Holes in files stay holes, and a file with several names stays
        one file: neither counts towards `limit`. More than `limit` bytes, or more than `entries`
        files, folders and links, is a `TransferError`; so is a source that is not there.
        """
        ...

    async def empty(self, path: str, *, mode: int = 0o755) -> None:
        """Make `path` an empty folder, whatever stood there: a link, a file, a tree."""
        ...

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Apply a policy to every command from now on."""
        ...

    async def serve(self, port: int, on_connection: OnConnection) -> Served:
        """Listen on 127.0.0.1:`port` in the sandbox, 0 for any free one, without a network.

        This is how what runs in a sandbox that has no network reaches the gateway: each
        connection is handed to `on_connection`, which runs in this process.
        """
        ...

    async def kill_all(self) -> None:
        """Kill every process but the sandbox's own init, and wait until they are gone."""
        ...

    async def status(self) -> SandboxStatus: ...

    async def close(self) -> None:
        """End everything in it. The host may still be removing its files when this returns."""
        ...


class Resettable(Sandbox, Protocol):
    """A sandbox that can be put back to its image's state, and prove it."""

    async def baseline(self) -> int:
        """Take the manifest of all that is in it now; how many entries it has."""
        ...

    async def reset(self) -> str:
        """Kill everything and put the file system back to the baseline.

        Returns why it is in doubt that nothing of its last use is left; "" where it is proven.
        """
        ...


class Backend(Protocol):
    """Builds images and starts sandboxes. Entering it reaps what dead owners left behind."""

    @property
    def name(self) -> str: ...

    @property
    def warnings(self) -> Sequence[str]:
        """What this host cannot do or enforce, each to be said once a run."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        """Build an image, or find the one that an equal source was built into."""
        ...

    async def create(self, image: Image, spec: SandboxSpec) -> Sandbox: ...
