import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

import pytest

from helpers import HOST, FinishedTrial, Shell, write_task_folder
from parts import need
from plimsoll.agents.nop import Nop
from plimsoll.agents.protocol import Agent
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.task import Task
from plimsoll.trials.artifacts import Bounds
from plimsoll.trials.trial import run_trial

PASS = "echo 1 > /logs/verifier/reward.txt\n"
WITH_PYTEST = """\
FROM host-system
COPY kit /opt/pytest
RUN python3 -m compileall -q /opt/pytest
ENV PYTHONPATH=/opt/pytest PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
"""
PYTEST_OR_ZERO = """\
if python3 -m pytest -p no:cacheprovider -rA /tests/test_outputs.py; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WriteTask = Callable[..., Task]


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Write and load a single-step task; its tests give 1 by default."""

    def write(
        name: str = "task",
        *,
        test: str = PASS,
        toml: str = "",
        instruction: str = "Do it.\n",
        dockerfile: str = HOST,
        files: Mapping[str, str] | None = None,
    ) -> Task:
        content = {
            "instruction.md": instruction,
            "environment/Dockerfile": dockerfile,
            "tests/test.sh": test if test.startswith("#!") else f"#!/bin/bash\n{test}",
            **(files or {}),
        }
        return write_task_folder(tmp_path / "tasks" / name, content, toml)

    return write


@pytest.fixture
def run(backend: Backend, tmp_path: Path) -> Callable[..., Awaitable[FinishedTrial]]:
    """Run one trial of a task with an agent or with a shell script as the agent."""

    async def run(
        task: Task,
        agent: Agent | str | None = None,
        attempt: int = 1,
        bounds: Bounds | None = None,
    ) -> FinishedTrial:
        folder = tmp_path / "trials" / f"{task.name}.{attempt}"
        runner = Shell(agent) if isinstance(agent, str) else agent or Nop()
        result = await run_trial(
            task,
            attempt=attempt,
            agent=runner,
            backend=backend,
            run="test",
            directory=folder,
            bounds=bounds,
        )
        return FinishedTrial(result.verdict, result.folder or folder, result.phases)

    return run


@pytest.fixture
def write_pytest_task(write_task: WriteTask, copy_of_pytest: Path) -> WriteTask:
    """Write a task whose tests are one pytest file, run as in most graders."""

    def write(
        *,
        tests: str,
        test: str = PYTEST_OR_ZERO,
        instruction: str = "Do it.\n",
        files: Mapping[str, str] | None = None,
    ) -> Task:
        content = {"tests/test_outputs.py": tests, **(files or {})}
        task = write_task(test=test, instruction=instruction, dockerfile=WITH_PYTEST, files=content)
        shutil.copytree(copy_of_pytest, task.environment_dir / "kit", copy_function=os.link)
        return task

    return write


@pytest.fixture(scope="session")
def copy_of_pytest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this pytest in a folder that the Python of a sandbox can import."""
    need("python", _python_problem())
    copy_of_pytest = tmp_path_factory.mktemp("kit")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in distribution(name).files or ():
            if _is_needed(file):
                (copy_of_pytest / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(file.locate()), copy_of_pytest / file)
    return copy_of_pytest


def _is_needed(file: PurePosixPath) -> bool:
    """True if pytest needs the file: it needs no caches, no programs and few lexers."""
    if file.suffix == ".pyc" or ".." in file.parts:
        return False
    lexers = {"__init__.py", "_mapping.py", "python.py", "diff.py"}
    return file.parent.name != "lexers" or file.name in lexers


def _python_problem() -> str | None:
    """The reason why a sandbox with the host's system cannot run pytest; None if it can."""
    python = shutil.which("python3", path=SYSTEM_PATH)
    if python is None:
        return f"there is no python3 on {SYSTEM_PATH}"
    ask = "import sys; print(*sys.version_info[:2])"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout
    if [int(word) for word in version.split()] < [3, 11]:
        return f"{python} is {version.strip()}, and pytest is asked to run on 3.11 or newer"
    return None
