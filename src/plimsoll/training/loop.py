"""The training loop: batches from rollouts, steps of the learner, new weights for the policy.

Synchronous and asynchronous training use the same loop: only the ledger's rules decide how far
rollouts run ahead.

The order of a step is: learn, write its figures, write the checkpoint if one is due, publish,
commit. Therefore:

- a committed version is being served;
- tokens generated before the commit carry the version that generated them;
- a crash at any point either undoes the step or leaves it complete.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import time
from collections.abc import Generator
from pathlib import Path

from safetensors import SafetensorError

from plimsoll.config.file import Config
from plimsoll.core.errors import CheckpointError, PlimsollError, TrainingError
from plimsoll.core.stopwatch import seconds_since
from plimsoll.core.versions import Version
from plimsoll.runs.batches import Batch
from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.evaluation.held_out_schedule import HeldOutSchedule
from plimsoll.runs.files.steps import StepReport, TrainerFigures
from plimsoll.runs.rollouts import Rollouts, Save
from plimsoll.training.dedicated_thread import DedicatedThread
from plimsoll.training.learner.distributed import DistributedLearner
from plimsoll.training.metrics.recorder import MetricsRecorder
from plimsoll.training.models import is_out_of_memory
from plimsoll.training.policies.protocol import Policy
from plimsoll.training.samples import BatchSamples, TrainingSample, read_samples

__all__ = ["Checkpointer", "Loop"]

_TRIES = 3


class Checkpointer:
    """Writes the checkpoints of one run. `saved` is the version of the last one.

    A failed write leaves the checkpoint before it intact. The step is committed anyway and the
    write is retried with the next step. After several failures in a row the run stops, because a
    crash would lose more and more steps.
    """

    def __init__(
        self, learner: DistributedLearner, *, every: int, last: int | None, saved: Version | None
    ) -> None:
        self.saved = saved
        self.failures = 0
        """Consecutive failures."""
        self._learner = learner
        self._every = every
        self._last = last

    @property
    def gave_up(self) -> bool:
        """Whether there were so many failures that the run stops."""
        return self.failures >= _TRIES

    def due(self, step: int) -> Save | None:
        """The function that writes the checkpoint of a step; None if none is due."""
        due = self.failures > 0 or step % self._every == 0 or step == self._last
        return self.save if due else None

    def save(self, folder: Path) -> None:
        """Write the learner's state. Raises `OSError` if the disk does not take it."""
        try:
            self._learner.save(folder)
        except (SafetensorError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            # Native writers report a full disk with their own error types.
            raise OSError(errno.EIO, str(error).partition("\n")[0], str(folder)) from error

    def succeeded(self, version: Version) -> None:
        """Note that the checkpoint of a version was written."""
        self.saved = version
        self.failures = 0

    def failed(self, error: CheckpointError) -> str:
        """Note a failure. Returns the reason to stop the run, or an empty text."""
        self.failures += 1
        _log.warning("%s (%d of %d tries)", error, self.failures, _TRIES)
        if not self.gave_up:
            return ""
        return f"{error}; {_TRIES} tries in a row failed: free some space, then resume"


_log = logging.getLogger(__name__)

_LOST = "steps since the last checkpoint are lost"
_AGAIN = "`plimsoll resume` repeats them"

MAX_REJECTED = 3
"""The run stops after this many consecutive batches with missing trajectories."""
MAX_REASONS = 8
"""The limit of logged reasons why answers cannot be trained on: some contain numbers."""


class Loop:
    """Trains on the batches of one run until there are none left."""

    def __init__(
        self,
        config: Config,
        rollouts: Rollouts,
        policy: Policy,
        learner: DistributedLearner,
        thread: DedicatedThread,
        metrics: MetricsRecorder,
        saved: Version | None,
    ) -> None:
        training = config.training
        self._config = config
        self._rollouts = rollouts
        self._policy = policy
        self._learner = learner
        self._thread = thread
        self._metrics = metrics
        self._held_out = HeldOutSchedule(rollouts)
        self._checkpointer = Checkpointer(
            learner, every=training.checkpoint_every, last=config.run.steps, saved=saved
        )
        self._learned: Version | None = rollouts.version
        """The version of the learner's weights; None during a step."""
        self._bad = learner.bad_steps
        self._rejected = 0
        """Consecutive batches that could not be read."""
        self._untrainable = 0
        """Consecutive batches without a trainable token, although the policy answered."""
        self._logged: set[str] = set()
        """Logged reasons why answers cannot be trained on."""

    async def run(self) -> None:
        """Train to the end. Raises the error that ends the run early, after saving the last
        complete step."""
        try:
            await self._note(await self._held_out.if_due())
            await self._train()
            await self._note(await self._held_out.at_end())
        except Exception as error:
            if not isinstance(error, PlimsollError):
                self._rollouts.stop(_summary(error))
            await self._save_last(is_reported=True)
            raise
        await self._save_last(is_reported=self._checkpointer.gave_up)

    async def _train(self) -> None:
        async for batch in self._rollouts.batches():
            with _explained(batch.step):
                await self._step(batch)

    async def _step(self, batch: Batch) -> None:
        mark = time.perf_counter()
        normalize = self._config.training.normalize
        read = await asyncio.to_thread(read_samples, batch, normalize=normalize)
        if read.gone:
            await self._reject(batch, read.gone)
            return
        self._rejected = 0
        untrainable = self._check_trainable(read, batch.step)
        read_seconds, mark = seconds_since(mark), time.perf_counter()
        report = await self._learn(batch, read.samples)
        del read
        figures = TrainerFigures(
            update=report,
            update_seconds=seconds_since(mark),
            read_seconds=read_seconds,
            untrainable=untrainable,
        )
        await self._commit(batch, figures)
        await self._metrics.step(self._rollouts.steps[-1])
        self._check_report(report, batch.step)
        await self._note(await self._held_out.if_due())

    def _check_trainable(self, read: BatchSamples, step: int) -> int:
        """The number of answers that cannot be trained on. Logs each reason once. Stops the run
        after several batches without any trainable token: it would learn nothing."""
        for why, count in read.left_out.items():
            if why not in self._logged and len(self._logged) < MAX_REASONS:
                self._logged.add(why)
                _log.warning(
                    "step %d: %d answers cannot be trained on: %s; see `untrainable` in "
                    "steps.jsonl for later steps",
                    *(step, count, why),
                )
        self._untrainable = self._untrainable + 1 if read.is_untrainable else 0
        if self._untrainable >= self._config.training.bad_steps:
            self._rollouts.stop(
                f"{self._untrainable} steps in a row had no token to train on: "
                f"{next(iter(read.left_out))}. Check the policy's servers with: plimsoll gateway "
                f"probe {next(iter(self._policy.urls), 'URL')}"
            )
        return read.left_out.total()

    async def _reject(self, batch: Batch, gone: dict[str, str]) -> None:
        """Roll out groups with missing trajectories again; stop if that happens repeatedly."""
        for group, why in gone.items():
            _log.warning("step %d: group %s is rolled out again: %s", batch.step, group, why)
        await self._rollouts.reject(batch, gone)
        self._rejected += 1
        if self._rejected >= MAX_REJECTED:
            raise TrainingError(
                f"{self._rejected} batches in a row had missing trajectories; the last reason: "
                f"{next(iter(gone.values()))}. Repair their storage ([storage] trajectories), "
                "then run `plimsoll resume`"
            )

    async def _learn(self, batch: Batch, samples: list[TrainingSample]) -> StepReport:
        before, self._learned = self._learned, None
        try:
            report = await self._thread.do(self._learner.step, samples)
        except Exception:
            self._learned = before if self._learner.is_whole else None
            raise
        self._learned = Version(batch.version.lineage, batch.step)
        return report

    async def _commit(self, batch: Batch, figures: TrainerFigures) -> None:
        """Write the checkpoint if one is due, publish the weights, commit the step."""

        async def publish(version: Version) -> None:
            is_same = bool(figures.update.skipped)
            weights = None if is_same else await self._thread.do(self._learner.weights)
            await self._policy.publish(weights, version)

        async def publish_saved(version: Version) -> None:
            self._checkpointer.succeeded(version)
            await publish(version)

        commit = functools.partial(self._rollouts.commit, batch, figures=figures)
        save = self._checkpointer.due(batch.step)
        if save is not None:
            try:
                await commit(save, publish=publish_saved)
                return
            except CheckpointError as error:
                if why := self._checkpointer.failed(error):
                    self._rollouts.stop(why)
        await commit(publish=publish)

    def _check_report(self, report: StepReport, step: int) -> None:
        """Log skipped updates; stop the run after several steps without a finite loss."""
        before, bad = self._bad, self._learner.bad_steps
        self._bad = bad
        if report.left_out and not report.skipped:
            _log.warning(
                "step %d skipped %d of its updates: loss or gradient not finite",
                *(step, report.left_out),
            )
        if bad <= before:
            return
        _log.warning("step %d changed nothing: %s (%d in a row)", step, report.skipped, bad)
        if bad >= self._config.training.bad_steps:
            self._rollouts.stop(
                f"{bad} steps in a row had no finite loss and gradient ({report.skipped}): lower "
                "[training] learning_rate; steps.jsonl shows where it began"
            )

    async def _note(self, measured: HeldOutResult | None) -> None:
        if measured is not None:
            await self._metrics.held_out(measured.step, measured.reward)

    async def _save_last(self, *, is_reported: bool) -> None:
        """Write a checkpoint of the last step of a run that ends between two checkpoints.

        Raises `TrainingError` if that fails, unless `is_reported`: then another error ends the run
        and this one is only logged.
        """
        learned, saved = self._learned, self._checkpointer.saved
        if learned is None:
            if self._rollouts.version.number > (0 if saved is None else saved.number):
                why = "the failed step had changed some of the weights"
                _log.warning("%s: %s; %s", _LOST, why, _AGAIN)
            return
        if learned.number == 0 or learned == saved:
            return
        try:
            await self._rollouts.save(self._checkpointer.save, learned)
            self._checkpointer.succeeded(learned)
        except Exception as error:  # any error: it must not hide the one that ends the run
            if not is_reported:
                raise TrainingError(f"{_LOST}: {_summary(error)}; {_AGAIN}") from error
            _log.warning("%s: %s; %s", _LOST, _summary(error), _AGAIN)


@contextlib.contextmanager
def _explained(step: int) -> Generator[None]:
    """Turn an unexpected exception of a step into a `TrainingError` with advice."""
    try:
        yield
    except PlimsollError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise TrainingError(
                f"step {step} failed, out of memory: {_summary(error)}. Set [training] recompute = "
                "true, lower micro_tokens or [run] batch_groups, use a smaller model, or train on "
                "more GPUs with torchrun; then run `plimsoll resume`"
            ) from error
        _log.error("step %d failed", step, exc_info=error)
        raise TrainingError(
            f"step {step} failed: {_summary(error)}. `plimsoll resume` tries it again; if that "
            "fails too, it is a bug of Plimsoll or of a library: report it with the traceback"
        ) from error


def _summary(error: Exception) -> str:
    """An error in one line. Expected errors need no type name."""
    first = str(error).strip().partition("\n")[0]
    if isinstance(error, PlimsollError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
