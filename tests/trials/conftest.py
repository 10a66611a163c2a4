"""Tasks written for one test, and trials of them in real sandboxes."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from plimsoll.agents.nop import Nop
from plimsoll.agents.protocol import Agent, Assignment, Outcome
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import Sandbox
from plimsoll.tasks.loader import load_task
from plimsoll.tasks.task import Task
from plimsoll.trials.record import VerdictFile
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Verdict

PASS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
HOST = "FROM host-system\nWORKDIR /app\n"
WITH_PYTEST = """\
FROM host-system
COPY kit /opt/pytest
RUN python3 -m compileall -q /opt/pytest
ENV PYTHONPATH=/opt/pytest PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
"""
PYTEST_OR_ZERO = """\
#!/bin/bash
if python3 -m pytest -p no:cacheprovider -rA /tests/test_outputs.py; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WriteTask = Callable[..., Task]


@dataclass(frozen=True, slots=True)
class Ran:
    """A trial that has ended: its verdict and its folder."""

    verdict: Verdict
    folder: Path
    phases: dict[str, float]

    @property
    def file(self) -> VerdictFile:
        return msgspec.json.decode((self.folder / "verdict.json").read_bytes(), type=VerdictFile)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()


class Shell:
    """An agent that is one shell script, whatever becomes of it."""

    name = "shell"
    reference = False

    def __init__(self, script: str) -> None:
        self._script = script

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        pass

    async def run(self, assignment: Assignment) -> Outcome:
        await assignment.sandbox.exec(
            self._script, user=assignment.user, on_output=assignment.on_output
        )
        return Outcome()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all tests, so that equal images are built once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
async def backend(home: Path) -> AsyncIterator[LocalBackend]:
    async with LocalBackend(LocalOptions(home=home)) as backend:
        yield backend


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Writes a task folder and loads it. Without steps its tests give 1."""

    def write(
        name: str = "task",
        *,
        test: str = PASS,
        toml: str = "",
        instruction: str = "Do it.\n",
        dockerfile: str = HOST,
        files: Mapping[str, str] | None = None,
    ) -> Task:
        folder = tmp_path / "tasks" / name
        content = {
            "task.toml": f'schema_version = "1.4"\n{toml}',
            "instruction.md": instruction,
            "environment/Dockerfile": dockerfile,
            "tests/test.sh": test if test.startswith("#!") else f"#!/bin/bash\n{test}",
            **(files or {}),
        }
        for path, text in content.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return load_task(folder)

    return write


@pytest.fixture
def run(backend: LocalBackend, tmp_path: Path) -> Callable[..., Awaitable[Ran]]:
    """Runs one trial of a task with an agent, or with a shell script in place of one."""

    async def run(task: Task, agent: Agent | str | None = None, attempt: int = 1) -> Ran:
        folder = tmp_path / "trials" / f"{task.name}.{attempt}"
        made = Shell(agent) if isinstance(agent, str) else agent or Nop()
        result = await run_trial(
            task, attempt=attempt, agent=made, backend=backend, run="test", directory=folder
        )
        return Ran(result.verdict, folder, result.phases)

    return run


@pytest.fixture
def write_pytest_task(write_task: WriteTask, kit_of_pytest: Path) -> WriteTask:
    """Writes a task whose tests are one file for pytest, run as most graders run it."""

    def write(name: str = "task", *, tests: str, test: str = PYTEST_OR_ZERO, **rest: object) -> Task:
        files = {"tests/test_outputs.py": tests, **rest.pop("files", {})}  # type: ignore[dict-item]
        task = write_task(name, test=test, dockerfile=WITH_PYTEST, files=files, **rest)
        shutil.copytree(kit_of_pytest, task.environment_dir / "kit", copy_function=os.link)
        return task

    return write


@pytest.fixture(scope="session")
def kit_of_pytest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pytest that runs these tests, as a folder that a sandbox's Python can import."""
    _need_a_python_for_pytest()
    kit = tmp_path_factory.mktemp("kit")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in distribution(name).files or ():
            if _is_for_the_kit(file):
                (kit / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), kit / file)
    return kit


def _is_for_the_kit(file: PurePosixPath) -> bool:
    """Not caches, not programs outside of the packages, and only the lexers that pytest uses."""
    if file.suffix == ".pyc" or ".." in file.parts:
        return False
    lexers = {"__init__.py", "_mapping.py", "python.py", "diff.py"}
    return file.parent.name != "lexers" or file.name in lexers


def _need_a_python_for_pytest() -> None:
    python = shutil.which("python3", path=SYSTEM_PATH)
    text = ""
    if python is not None:
        ask = "import sys; print(*sys.version_info[:2])"
        text = subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout
    if [int(word) for word in text.split()] < [3, 11]:
        reason = "no Python 3.11 or newer on the system's own path to run pytest in a sandbox"
        if "python" in os.environ.get("PLIMSOLL_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
