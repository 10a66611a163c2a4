"""A training notifies its workers when the policy pauses for new weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
from training_files import GRADE, write_training

from plimsoll.config.file import load_config
from plimsoll.runs.scheduling.scheduler import Scheduler
from plimsoll.training.trainer import Trainer


async def test_workers_are_notified_of_each_publish_and_its_mode(
    write_task: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    notices: list[tuple[bool, bool]] = []
    set_paused = Scheduler.set_paused

    def record(self: Scheduler, paused: bool, *, drains: bool = False) -> None:
        notices.append((paused, drains))
        set_paused(self, paused, drains=drains)

    monkeypatch.setattr(Scheduler, "set_paused", record)
    monkeypatch.chdir(tmp_path)
    write_task("a", test=GRADE)
    file = write_training(tmp_path, training={"updating": "drain"}, steps=2, batch_groups=1)
    await Trainer(load_config(file), out=tmp_path / "run").run()
    assert notices == [(True, True), (False, False)] * 2
