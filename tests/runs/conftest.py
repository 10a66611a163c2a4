import sys
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from stand_ins import stand_in

sys.path.insert(0, str(Path(__file__).parent))

from rollout_runs import MakeConfig, MakeTasks

from plimsoll.config.file import Config, load_config
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.tasks.loader import load_tasks
from plimsoll.tasks.task import Task


@pytest.fixture
def make_tasks(tmp_path: Path) -> MakeTasks:
    """Write minimal task folders, and load them."""

    def make(*names: str, into: str = "tasks") -> tuple[Task, ...]:
        for name in names:
            folder = tmp_path / into / name
            folder.mkdir(parents=True)
            (folder / "task.toml").write_text('schema_version = "1.4"\n')
            (folder / "instruction.md").write_text("Do nothing.\n")
        return load_tasks(tmp_path / into).tasks

    return make


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", now=datetime.now())


@pytest.fixture
def make_config(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeConfig:
    """A run of tasks whose names determine the outcome of their trials."""
    for name, value in stand_in("named_environment:named", Path(__file__).parent).items():
        monkeypatch.setenv(name, value)

    def make(
        *tasks: str, heldout: tuple[str, ...] = (), attempts: int = 1, **run: object
    ) -> Config:
        make_tasks(*tasks)
        settings = {"group_size": 2, "batch_groups": 2, "canary_every": 0, **run}
        lines = [
            f"{key} = {msgspec.json.encode(value).decode()}" for key, value in settings.items()
        ]
        if heldout:
            make_tasks(*heldout, into="heldout")
            lines += ["[evaluation]", 'tasks = "heldout"', f"attempts = {attempts}"]
        text = "\n".join(
            [
                "[run]",
                'tasks = "tasks"',
                'agent = "nop"',
                *lines,
                "[workers]",
                "concurrency = 4",
                "grace_seconds = 1",
            ]
        )
        (tmp_path / "run.toml").write_text(text)
        return load_config(tmp_path / "run.toml")

    return make
