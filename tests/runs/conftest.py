import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from plimsoll.runs.directory import RunDirectory
from plimsoll.tasks.loader import load_tasks
from plimsoll.tasks.task import Task

MakeTasks = Callable[..., tuple[Task, ...]]


@pytest.fixture
def make_tasks(tmp_path: Path) -> MakeTasks:
    """Writes the smallest task folders there are, and loads them."""

    def make(*names: str) -> tuple[Task, ...]:
        for name in names:
            folder = tmp_path / "tasks" / name
            folder.mkdir(parents=True)
            (folder / "task.toml").write_text('schema_version = "1.4"\n')
            (folder / "instruction.md").write_text("Do nothing.\n")
        return load_tasks(tmp_path / "tasks").tasks

    return make


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", now=datetime.now())
