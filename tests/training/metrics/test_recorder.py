"""Metrics of steps in sinks, which may fail."""

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll.config.file import Config
from plimsoll.config.training import MetricsConfig
from plimsoll.core.errors import UsageError
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.steps import Seconds, Step, StepReport
from plimsoll.training.metrics import sinks
from plimsoll.training.metrics.recorder import MetricsRecorder, flatten

LibraryRuns = tuple[str, list[dict[str, Any]]]


def make_step(step: int, reward: float | None = 0.5) -> Step:
    report = StepReport(loss=0.25, tokens=40, samples=4, learning_rate=1e-3, seconds=0.5)
    return Step(
        step=step,
        version=str(step),
        at=1e9,
        reward=reward,
        age=1,
        groups=2,
        graded=7,
        withheld=0,
        void={"sandbox": 1},
        sandbox_seconds=None,
        tokens_per_second=20.0,
        seconds=Seconds(total=2.0, wait=1.0, update=0.5),
        untrainable=0,
        update=report,
    )


class RecordingSink:
    """A sink that records its figures, and fails after `fails_after` steps."""

    name = "kept"

    def __init__(self, fails_after: int = 100) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False
        self._left = fails_after

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("nobody is there")
        self.lines.append((step, dict(figures)))

    def close(self) -> None:
        self.closed = True


async def test_sinks_get_the_named_figures_of_each_step():
    sink = RecordingSink()
    metrics = MetricsRecorder([sink])
    await metrics.step(make_step(1))
    await metrics.held_out(1, 0.75)
    await metrics.held_out(1, None)
    await metrics.close()
    (step, figures), held_out = sink.lines
    assert step == 1
    assert figures["update/loss"] == 0.25
    assert figures["void/sandbox"] == 1
    assert "version" not in figures and "sandbox_seconds" not in figures
    assert held_out == (1, {"heldout/reward": 0.75})
    assert sink.closed


async def test_a_failing_sink_is_reported_once_and_dropped(caplog: pytest.LogCaptureFixture):
    failing, working = RecordingSink(fails_after=1), RecordingSink()
    metrics = MetricsRecorder([failing, working])
    for step in (1, 2, 3):
        await metrics.step(make_step(step))
    await metrics.close()
    assert [step for step, _ in working.lines] == [1, 2, 3]
    assert [step for step, _ in failing.lines] == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "kept is dropped: nobody is there; steps.jsonl has the figures"
    ]


HANGS = """
import asyncio, sys, threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from plimsoll.cli.terminal.interrupts import Interrupts
from plimsoll.training.metrics import recorder, sinks
from plimsoll.config.file import Config
from plimsoll.runs.files.directory import RunDirectory

class Hangs:
    name = "far away"
    def write(self, step, figures):
        threading.Event().wait()
    close = write

async def main():
    recorder._SECONDS = sinks._SECONDS = 0.2
    sinks._makers = lambda *_: {"further away": threading.Event().wait}
    assert await sinks.make_sinks(Config(), RunDirectory(Path("run")), begin=0) == []
    made = recorder.MetricsRecorder([Hangs()])
    await made.held_out(0, 0.5)
    await made.held_out(1, 0.5)
    await made.close()

with Interrupts(lambda: False) as interrupts:
    interrupts.run(main())
print("over")
"""


def test_a_hanging_sink_is_reported_and_does_not_delay_the_end(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
    assert done.stderr.splitlines() == [
        "no figures go to further away: no answer within 0.2 s; steps.jsonl has them",
        "far away is dropped: no answer within 0.2 s; steps.jsonl has the figures",
    ]


def test_a_missing_sink_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"\[metrics\] wandb needs wandb.*plimsoll-rl\[wandb\]"):
        sinks.check_sinks(MetricsConfig(wandb="night"))
    sinks.check_sinks(MetricsConfig())


def make_run(tmp_path: Path, **metrics: object) -> tuple[Config, RunDirectory]:
    directory = RunDirectory.create(tmp_path / "run", now=datetime.now())
    return Config.model_validate({"metrics": metrics}), directory


async def test_a_sink_that_cannot_start_is_reported_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config, directory = make_run(tmp_path, tensorboard=True)
    (directory.path / "tensorboard").write_text("in the way")
    assert await sinks.make_sinks(config, directory, begin=0) == []
    assert "no figures go to TensorBoard" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


async def test_tensorboard_has_every_figure_of_every_step(tmp_path: Path):
    config, directory = make_run(tmp_path, tensorboard=True)
    for begin in (0, 2):  # the second time as after a crash
        (sink,) = await sinks.make_sinks(config, directory, begin=begin)
        metrics = MetricsRecorder([sink])
        await metrics.step(make_step(begin + 1))
        await metrics.close()
    files = sorted((directory.path / "tensorboard").iterdir())
    written = b"".join(file.read_bytes() for file in files)
    for name in flatten(make_step(1)):
        assert name.encode() in written, name


@pytest.fixture(params=["wandb", "trackio"])
def library_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LibraryRuns:
    """Records the runs that begin, in place of the library."""
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> SimpleNamespace:
        calls.append(options)
        return SimpleNamespace(define_metric=lambda *_, **__: None)

    monkeypatch.setitem(sys.modules, request.param, SimpleNamespace(init=init))
    # Unload the module that imports the library, before and after the test.
    own = f"plimsoll.training.metrics.{request.param}"
    monkeypatch.setitem(sys.modules, own, None)
    monkeypatch.delitem(sys.modules, own)
    return request.param, calls


async def test_runs_of_one_name_are_distinct_and_a_resumed_run_keeps_its_id(
    tmp_path: Path, library_runs: LibraryRuns
):
    kind, calls = library_runs
    for parent in ("one", "other", "one"):
        directory = RunDirectory(tmp_path / parent / "night")
        directory.path.mkdir(parents=True, exist_ok=True)
        config = Config.model_validate({"metrics": {kind: "project"}})
        assert len(await sinks.make_sinks(config, directory, begin=0)) == 1
    first, second, again = (call.get("id", call["name"]) for call in calls)
    assert first == again != second
    assert all(call["name"].startswith("night") for call in calls)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
async def test_wandb_records_a_run_offline_and_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(os.environ, "WANDB_MODE", "offline")
    config, directory = make_run(tmp_path, wandb="night")
    for begin in (0, 1):
        (sink,) = await sinks.make_sinks(config, directory, begin=begin)
        metrics = MetricsRecorder([sink])
        await metrics.step(make_step(begin + 1))
        await metrics.close()
    files = list((directory.path / "wandb").rglob("*.wandb"))
    assert files
    assert any(b"update/loss" in file.read_bytes() for file in files)


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
async def test_trackio_records_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.environ, "TRACKIO_DIR", str(tmp_path / "trackio"))
    config, directory = make_run(tmp_path, trackio="night")
    (sink,) = await sinks.make_sinks(config, directory, begin=0)
    metrics = MetricsRecorder([sink])
    await metrics.step(make_step(1))
    await metrics.close()
    assert any(file.stat().st_size for file in (tmp_path / "trackio").rglob("night*"))
