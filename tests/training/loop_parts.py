"""A learner and a policy with programmed faults, around real rollouts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from plimsoll.config.file import Config
from plimsoll.core.versions import Version
from plimsoll.ledger.report import make_report
from plimsoll.runs.files.steps import StepReport
from plimsoll.runs.rollouts import Rollouts
from plimsoll.training.dedicated_thread import DedicatedThread
from plimsoll.training.loop import Loop
from plimsoll.training.metrics.recorder import MetricsRecorder
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.samples import TrainingSample

__all__ = ["CountingLearner", "RecordingPolicy", "check_ledger", "train"]

Fault = Callable[[int], None]


def _no_fault(step: int) -> None:
    del step


class CountingLearner:
    """A learner whose weights are the number of its steps."""

    def __init__(
        self, *, bad: Sequence[int] = (), step: Fault = _no_fault, save: Fault = _no_fault
    ):
        self.steps = 0
        self.bad_steps = 0
        self.is_whole = True
        self.loaded: Path | None = None
        self._bad = bad
        self._fail_step = step
        self._fail_save = save

    def step(self, items: Sequence[TrainingSample]) -> StepReport:
        del items
        self._fail_step(self.steps + 1)
        self.steps += 1
        is_bad = self.steps in self._bad
        self.bad_steps = self.bad_steps + 1 if is_bad else 0
        skipped = "the loss is nan" if is_bad else ""
        return StepReport(tokens=0, samples=0, learning_rate=1.0, seconds=0.0, skipped=skipped)

    def weights(self) -> Weights:
        return Weights({"steps": torch.tensor(self.steps)}, Path())

    def save(self, folder: Path) -> None:
        self._fail_save(self.steps)
        (folder / "steps").write_text(str(self.steps))

    def load(self, folder: Path) -> None:
        self.loaded = folder
        self.steps = int((folder / "steps").read_text())


class RecordingPolicy:
    """A policy that records the published versions, and may refuse one."""

    urls = ()
    key = model = None

    def __init__(self, fault: Callable[[Version], None] = lambda _: None) -> None:
        self.published: list[tuple[str, int | None]] = []
        """Each version with the number of steps of its weights; None without new weights."""
        self.fault = fault

    async def publish(self, weights: Weights | None, version: Version) -> None:
        self.fault(version)
        steps = None if weights is None else int(weights.tensors["steps"])
        self.published.append((str(version), steps))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


async def train(
    config: Config,
    out: Path,
    learner: CountingLearner,
    policy: RecordingPolicy,
    on_start: Callable[[Rollouts], None] = lambda _: None,
) -> Rollouts:
    """Train as the trainer does, starting at the last checkpoint."""
    thread = DedicatedThread("learner")

    async def prepare(rollouts: Rollouts) -> None:
        if rollouts.checkpoint is not None:
            learner.load(rollouts.checkpoint)

    async with Rollouts(config, out=out, prepare=prepare) as rollouts:
        on_start(rollouts)
        metrics = MetricsRecorder()
        saved = None if rollouts.checkpoint is None else rollouts.version
        await Loop(config, rollouts, policy, learner, thread, metrics, saved).run()
    thread.close()
    return rollouts


def check_ledger(run: Path) -> None:
    """Check that the ledger of the run reports no problem."""
    assert make_report(run, check=True, task=None).problems == []
