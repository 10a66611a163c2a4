"""The loop: batches from rollouts, steps of the learner, new weights to the policy.

Training in turn and training at once are this one loop: the ledger's rules alone say how far
rollouts run ahead of it.

The order of a step is: learn, note its line, write the checkpoint where one is due, publish,
commit. So what was committed is served, what is generated before its commit counts as it is
stamped, and a crash at any point either undoes the step or finds it whole.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Generator

from plimsoll.config.file import Config
from plimsoll.core.errors import CheckpointError, PlimsollError, TrainingError
from plimsoll.core.versions import Version
from plimsoll.runs.batches import Batch, group_statistics
from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.evaluation.held_out_schedule import HeldOutSchedule
from plimsoll.runs.rollouts import Rollouts
from plimsoll.training.checkpoints import Checkpointer
from plimsoll.training.dedicated_thread import DedicatedThread
from plimsoll.training.learner.protocol import LearnerProtocol
from plimsoll.training.metrics.recorder import MetricsRecorder
from plimsoll.training.metrics.step_metrics import Seconds, StepMetrics, StepReport
from plimsoll.training.models import is_out_of_memory
from plimsoll.training.policies.protocol import Policy
from plimsoll.training.samples import BatchSamples, TrainingSample, read_samples

__all__ = ["Loop"]

_log = logging.getLogger(__name__)

_LOST = "steps since the last checkpoint are lost"
_AGAIN = "`plimsoll resume` makes them again"

REJECTED = 3
"""So many batches in a row of which something is gone, and it is no accident any more."""
REASONS = 8
"""As many are said of why answers cannot be trained on: some have counts in them."""


class Loop:
    """Trains on the batches of one run until there are no more."""

    def __init__(
        self,
        config: Config,
        rollouts: Rollouts,
        policy: Policy,
        learner: LearnerProtocol,
        thread: DedicatedThread,
        metrics: MetricsRecorder,
        kept: Version | None,
    ) -> None:
        training = config.training
        self._config = config
        self._rollouts = rollouts
        self._policy = policy
        self._learner = learner
        self._thread = thread
        self._metrics = metrics
        self._measuring = HeldOutSchedule(rollouts)
        self._keeper = Checkpointer(
            learner, every=training.checkpoint_every, last=config.run.steps, kept=kept
        )
        self._learned: Version | None = rollouts.version
        """The version of the learner's weights; None while they are of no version."""
        self._bad = learner.bad_steps
        self._rejected = 0
        """How many batches in a row could not be read."""
        self._mute = 0
        """How many in a row had not a token that can be trained on, though the policy answered."""
        self._told: set[str] = set()
        """Why answers could not be trained on, as far as it was said."""

    async def run(self) -> None:
        """Raises what ends the run before its last step; nothing that was learned is lost."""
        try:
            await self._note(await self._measuring.if_due())
            await self._train()
            await self._note(await self._measuring.at_end())
        except Exception as error:
            if not isinstance(error, PlimsollError):
                self._rollouts.stop(_said(error))
            await self._keep_last(is_told=True)
            raise
        await self._keep_last(is_told=self._keeper.gave_up)

    async def _train(self) -> None:
        mark = time.perf_counter()
        async for batch in self._rollouts.batches():
            with _explained(batch.step):
                await self._step(batch, Seconds(wait=_since(mark)))
            mark = time.perf_counter()

    async def _step(self, batch: Batch, seconds: Seconds) -> None:
        mark = time.perf_counter()
        normalize = self._config.training.normalize
        read = await asyncio.to_thread(read_samples, batch, normalize=normalize)
        if read.gone:
            await self._reject(batch, read.gone)
            return
        self._rejected = 0
        untrainable = self._listen(read, batch.step)
        seconds.read, mark = _since(mark), time.perf_counter()
        report = await self._learn(batch, read.items)
        seconds.update = _since(mark)
        del read
        line = functools.partial(self._line, batch, report, seconds, untrainable)
        await self._metrics.note(line())
        await self._commit(batch, report, seconds)
        await self._metrics.step(line())
        self._look_at(report, batch.step)
        await self._note(await self._measuring.if_due())

    def _listen(self, read: BatchSamples, step: int) -> int:
        """How many answers of a batch cannot be trained on. Why is said once for each reason, and
        the run stops where that is all there is: it would go on to its end and learn nothing."""
        for why, count in read.left_out.items():
            if why not in self._told and len(self._told) < REASONS:
                self._told.add(why)
                _log.warning(
                    "step %d: %d answers cannot be trained on: %s; `untrainable` in metrics.jsonl "
                    "counts them from here on",
                    *(step, count, why),
                )
        self._mute = self._mute + 1 if read.is_mute else 0
        if self._mute >= self._config.training.bad_steps:
            self._rollouts.stop(
                f"{self._mute} steps in a row had not a token to train on: "
                f"{next(iter(read.left_out))}. See what the policy's servers return: plimsoll "
                f"gateway probe {next(iter(self._policy.urls), 'URL')}"
            )
        return read.left_out.total()

    async def _reject(self, batch: Batch, gone: dict[str, str]) -> None:
        """Have what is gone rolled out again; stop where that does not help."""
        for group, why in gone.items():
            _log.warning("step %d: group %s is rolled out again: %s", batch.step, group, why)
        await self._rollouts.reject(batch, gone)
        self._rejected += 1
        if self._rejected >= REJECTED:
            raise TrainingError(
                f"{self._rejected} batches in a row had trajectories that are gone, the last for: "
                f"{next(iter(gone.values()))}. See to where they are stored ([storage] "
                "trajectories), then `plimsoll resume`"
            )

    async def _learn(self, batch: Batch, items: list[TrainingSample]) -> StepReport:
        before, self._learned = self._learned, None
        try:
            report = await self._thread.do(self._learner.step, items)
        except Exception:
            self._learned = before if self._learner.is_whole else None
            raise
        self._learned = Version(batch.version.lineage, batch.step)
        return report

    async def _commit(self, batch: Batch, report: StepReport, seconds: Seconds) -> None:
        """Write the checkpoint if one is due, have the weights served, note the step."""
        mark = time.perf_counter()

        async def publish(version: Version) -> None:
            began = time.perf_counter()
            weights = None if report.skipped else await self._thread.do(self._learner.weights)
            await self._policy.publish(weights, version)
            seconds.publish = _since(began)

        async def publish_kept(version: Version) -> None:
            self._keeper.wrote(version)
            seconds.checkpoint = _since(mark)
            await publish(version)

        commit = functools.partial(self._rollouts.commit, batch, skipped=report.skipped)
        save = self._keeper.due(batch.step)
        if save is not None:
            try:
                await commit(save, publish=publish_kept)
                return
            except CheckpointError as error:
                seconds.checkpoint = _since(mark)
                if why := self._keeper.failed(error):
                    self._rollouts.stop(why)
        await commit(publish=publish)

    def _look_at(self, report: StepReport, step: int) -> None:
        """Say what was left out; stop where nothing can be learned any more."""
        before, bad = self._bad, self._learner.bad_steps
        self._bad = bad
        if report.left_out and not report.skipped:
            _log.warning(
                "step %d left out %d of its updates: no finite loss and gradient",
                *(step, report.left_out),
            )
        if bad <= before:
            return
        _log.warning("step %d changed nothing: %s (%d in a row)", step, report.skipped, bad)
        if bad >= self._config.training.bad_steps:
            self._rollouts.stop(
                f"{bad} steps in a row had no finite loss and gradient ({report.skipped}): lower "
                "[training] learning_rate, or look at metrics.jsonl for where it began"
            )

    def _line(
        self, batch: Batch, report: StepReport, seconds: Seconds, untrainable: int
    ) -> StepMetrics:
        members = [member for group in batch.groups for member in group.members]
        total = seconds.wait + seconds.read + seconds.update + seconds.checkpoint + seconds.publish
        return StepMetrics(
            step=batch.step,
            version=str(Version(batch.version.lineage, batch.step)),
            at=time.time(),
            reward=batch.reward,
            age=batch.age,
            groups=len(batch.groups),
            flat_groups=sum(group_statistics(one.rewards).zero_variance for one in batch.groups),
            graded=sum(member.reward is not None for member in members),
            withheld=sum(member.withheld for member in members),
            untrainable=untrainable,
            void=self._rollouts.status().void,
            sandbox_seconds=batch.sandbox_seconds,
            tokens_per_second=round(report.tokens / total, 1) if total else 0.0,
            seconds=seconds,
            update=report,
        )

    async def _note(self, measured: HeldOutResult | None) -> None:
        if measured is not None:
            await self._metrics.heldout(measured.step, measured.reward)

    async def _keep_last(self, *, is_told: bool) -> None:
        """A run that ends between two checkpoints goes on from where it ended.

        Raises `TrainingError` where that cannot be kept, unless it `is_told` already that the run
        failed: to end as if all were well would lose what was learned unsaid.
        """
        learned, kept = self._learned, self._keeper.kept
        if learned is None:
            if self._rollouts.version.number > (0 if kept is None else kept.number):
                why = "the step that failed had changed some of the weights"
                _log.warning("%s: %s; %s", _LOST, why, _AGAIN)
            return
        if learned.number == 0 or learned == kept:
            return
        try:
            await self._rollouts.save(self._keeper.save, learned)
            self._keeper.wrote(learned)
        except Exception as error:  # whatever it is: it hides no error that is under way
            if not is_told:
                raise TrainingError(f"{_LOST}: {_said(error)}; {_AGAIN}") from error
            _log.warning("%s: %s; %s", _LOST, _said(error), _AGAIN)


@contextlib.contextmanager
def _explained(step: int) -> Generator[None]:
    """Turns whatever ends a step, and is not raised on purpose, into what a person is told."""
    try:
        yield
    except PlimsollError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise TrainingError(
                f"step {step} failed, out of memory: {_said(error)}. Set [training] recompute = "
                "true where it is not, micro_tokens or [run] batch_groups lower, take a smaller "
                "model, or train on more GPUs with torchrun; `plimsoll resume` goes on"
            ) from error
        _log.error("step %d failed", step, exc_info=error)
        raise TrainingError(
            f"step {step} failed: {_said(error)}. `plimsoll resume` tries it again; where that "
            "fails too, it is a fault of Plimsoll or of a library: report it with the trace"
        ) from error


def _said(error: Exception) -> str:
    """In one line. Errors that are raised on purpose need no name."""
    first = str(error).strip().partition("\n")[0]
    if isinstance(error, PlimsollError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _since(mark: float) -> float:
    return round(time.perf_counter() - mark, 4)
