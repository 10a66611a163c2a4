"""The `docker compose` command: located, version-checked, and run with a minimal environment.

The plugin is started directly, so the `docker` command itself is not needed. It gets an empty
Docker configuration: no contexts, passwords or proxies of the user.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxUnsupported
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint
from plimsoll.sandboxes.host.temporary import temporary_folder

__all__ = ["ComposeCommand", "ComposeError", "find_compose"]

_PLUGIN = "docker-compose"
_SYSTEM_FOLDERS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
_VERSION_SECONDS = 20.0
_MAX_LINES = 20
_REQUIREMENT = (
    "tasks with a docker-compose.yaml need Docker Compose V2: install the package "
    "docker-compose-plugin (docker-compose-v2 or docker-compose in some distributions), so that "
    "`docker compose version` prints 2 or later; tasks of one container need no Compose"
)


class ComposeError(Exception):
    """The command failed; the message is its last output."""


@dataclass(frozen=True, slots=True)
class ComposeCommand:
    """A Compose V2 executable of this host."""

    path: Path
    version: str

    async def run(
        self,
        *args: str,
        endpoint: Endpoint,
        env: Mapping[str, str] | None = None,
        seconds: float,
    ) -> bytes:
        """Run the command and return its stdout. It never outlives this call."""
        with temporary_folder() as empty:
            full = {**_minimal_env(endpoint, str(empty)), **(env or {})}
            process = await asyncio.create_subprocess_exec(
                self.path,
                "--ansi=never",
                *args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=full,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(seconds):
                    out, output = await process.communicate()
            except TimeoutError:
                raise ComposeError(f"it took longer than {seconds:.0f} s") from None
            finally:
                await run_to_completion(_kill(process))
        if process.returncode:
            raise ComposeError(_last_lines(output) or f"exit {process.returncode}")
        return out


def find_compose(
    env: Mapping[str, str], *, system_folders: Sequence[str] = _SYSTEM_FOLDERS
) -> ComposeCommand:
    """Find Compose V2: a plugin of the `docker` command, or a standalone executable.

    Raises `SandboxUnsupported` with what to install if there is none or only version 1.
    """
    found: list[str] = []
    for path in _candidates(env, system_folders):
        version = _version(path)
        if version and int(version.split(".")[0]) >= 2:
            return ComposeCommand(path, version)
        found.append(f"{path} is version {version}" if version else f"{path} does not start")
    raise SandboxUnsupported("; ".join([_REQUIREMENT, *found]))


def _candidates(env: Mapping[str, str], system_folders: Sequence[str]) -> Iterator[Path]:
    config = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or "/", ".docker"))
    folders = [config / "cli-plugins", *_extra_folders(config), *map(Path, system_folders)]
    for path in (folder / _PLUGIN for folder in folders):
        if os.access(path, os.X_OK) and path.is_file():
            yield path
    standalone = shutil.which(_PLUGIN, path=env.get("PATH", ""))
    if standalone:
        yield Path(standalone)


def _extra_folders(config: Path) -> list[Path]:
    try:
        settings = json.loads((config / "config.json").read_bytes())
        return [Path(folder) for folder in settings["cliPluginsExtraDirs"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _version(path: Path) -> str:
    try:
        process = subprocess.Popen(
            [path, "version", "--short"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return ""
    with process:
        try:
            output, _ = process.communicate(timeout=_VERSION_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    number = re.match(r"v?(\d+(?:\.\d+)*)", output.decode("utf-8", "replace").strip())
    return number[1] if number else ""


def _minimal_env(endpoint: Endpoint, folder: str) -> dict[str, str]:
    env = {
        **endpoint.environment(),
        "DOCKER_CONFIG": folder,
        "HOME": folder,
        "PATH": os.environ.get("PATH", ""),
        # Compose must not fetch files from the network.
        "COMPOSE_EXPERIMENTAL_GIT_REMOTE": "false",
        "COMPOSE_EXPERIMENTAL_OCI_REMOTE": "false",
        "COMPOSE_PROFILES": "",
    }
    if endpoint.url.startswith("ssh://"):
        own = ("HOME", "SSH_AUTH_SOCK")
        env |= {name: os.environ[name] for name in own if name in os.environ}
    return env


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group and wait for the process."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _last_lines(output: bytes) -> str:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    messages = [line for line in lines if line and not line.startswith("time=")]
    return "\n".join((messages or lines)[-_MAX_LINES:])
