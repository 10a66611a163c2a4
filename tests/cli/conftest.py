import asyncio
import functools
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from commands_here import run_here
from helpers import MARK
from parts import need
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from ports import held_port

LONG = ("slow", "docker", "ray", "alone")
"""The marks of tests that `make test` leaves out."""
PASS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


@pytest.fixture(scope="session")
def sandboxes(home: Path) -> None:
    """Skips where local sandboxes are not available."""

    async def enter() -> None:
        async with LocalBackend(LocalOptions(home=home)):
            pass

    try:
        asyncio.run(enter())
    except SandboxUnavailable as error:
        need("local", str(error))


@pytest.fixture
def write_task(tmp_path: Path, sandboxes: None) -> Callable[..., Path]:
    """Writes a folder below `tasks/`. Defaults: the tests give 1, the solution does nothing."""

    def write(name: str, *, toml: str = "", test: str = PASS, solve: str = "true") -> Path:
        folder = tmp_path / "tasks" / name
        for part in ("environment", "tests", "solution"):
            (folder / part).mkdir(parents=True)
        (folder / "task.toml").write_text(f'schema_version = "1.4"\n{toml}')
        (folder / "instruction.md").write_text("Do it.\n")
        (folder / "environment/Dockerfile").write_text("FROM scratch-host\n")
        (folder / "tests/test.sh").write_text(test)
        (folder / "solution/solve.sh").write_text(f"#!/bin/bash\n{solve}\n")
        return folder

    return write


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `plimsoll` in the test's folder. Kills the processes that the test leaves running."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, python: tuple[str, ...] = ("-m", "plimsoll")) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *python, *args],
            cwd=tmp_path,
            env=os.environ | {"NO_COLOR": "1"},
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A marker in the environment of every process that the test starts."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


@pytest.fixture
def plimsoll(
    request: pytest.FixtureRequest, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `plimsoll` in the test's folder, and waits until it ends.

    In quick tests it runs in this process, because importing the package costs more than most
    commands do. `start` always starts a process.
    """

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        process = start(*args)
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    is_quick = not any(map(request.node.get_closest_marker, LONG))
    return functools.partial(run_here, tmp_path) if is_quick else run


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A URL where no server listens."""
    with held_port() as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(params=["local", "docker", "docker-tls"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """The options that select local sandboxes, the Docker daemon of this host, or a remote one."""
    if request.param == "local":
        request.getfixturevalue("sandboxes")
        return ("--backend", "local")
    if request.param == "docker":
        config = f'[docker]\nhost = "{request.getfixturevalue("docker_daemon")}"\n'
    else:
        daemon = request.getfixturevalue("tls_daemon")
        config = f'[docker]\nhost = "{daemon.url}"\ncertificates = "{daemon.certificates}"\n'
    (tmp_path / "docker.toml").write_text(config)
    return ("--backend", "docker", "--config", "docker.toml")
