"""A run that trains: a policy, rollouts, a learner, and the loop over them.

    trainer = Trainer(load_config(Path("run.toml")))
    await trainer.run()
    print(trainer.summary)

If `out` is the directory of a run already, the trainer resumes it.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from plimsoll.config.file import Config
from plimsoll.config.training import TrainingConfig
from plimsoll.ledger.journal.location import has_ledger
from plimsoll.runs.files.status import RunSummary
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollouts import Rollouts
from plimsoll.training.dedicated_thread import DedicatedThread
from plimsoll.training.learner.distributed import DistributedLearner, execute_commands
from plimsoll.training.learner.learner import Learner
from plimsoll.training.loop import Loop
from plimsoll.training.metrics.plot import Curves, draw
from plimsoll.training.metrics.recorder import MetricsRecorder
from plimsoll.training.metrics.sinks import check_sinks, make_sinks
from plimsoll.training.models import find_device
from plimsoll.training.policies.factory import (
    check_servers,
    discard_weights,
    make_local_policy,
    make_remote_policy,
    model_folder,
)
from plimsoll.training.policies.local.sampling import GenerationParams
from plimsoll.training.policies.protocol import Pausing, Policy
from plimsoll.training.policies.remote.openai_policy import OpenAIPolicy
from plimsoll.workers.worker.policy_service import ServedPolicy

__all__ = ["OnRollouts", "Trainer", "follow_rank_zero"]

OnRollouts = Callable[[Rollouts], None]
_log = logging.getLogger(__name__)


def follow_rank_zero(config: Config) -> None:
    """Run a rank other than the first: execute its commands until it closes."""
    execute_commands(_learner(config))


def _learner(config: Config) -> Learner:
    return Learner(config.training, model_folder(config.training), steps=config.run.steps)


def _check_plan(config: Config) -> None:
    """Raise errors of the plan before a model is loaded, which may take minutes."""
    serves = config.training.policy != "openai"
    Plan.make(config, ServedPolicy(("http://127.0.0.1/v1",)) if serves else None)


def _warn_of_sampling(sampling: GenerationParams, folder: Path) -> None:
    """Warn of sampling defaults: log probabilities are those of the unmodified model."""
    if sampling == GenerationParams():
        return
    _log.warning(
        "%s sets temperature %g, top_p %g and top_k %d for sampling, and log probabilities ignore "
        'them: set [policy] sampling = "model" to train on samples of the unmodified model',
        folder / "generation_config.json",
        *(sampling.temperature, sampling.top_p, sampling.top_k),
    )


def _warn_of_clips(training: TrainingConfig) -> None:
    usual = TrainingConfig()
    is_usual = (training.clip_low, training.clip_high) == (usual.clip_low, usual.clip_high)
    if training.clips or is_usual:
        return
    _log.warning(
        "[training] clip_low and clip_high have no effect: with one update for each batch the "
        "ratio of new to old probabilities is 1. Set updates to 2 or more"
    )


def _draw(rollouts: Rollouts) -> None:
    """Plot the run. A failure is only logged."""
    directory = rollouts.directory
    measured = [(one.step, one.reward) for one in rollouts.held_out if one.reward is not None]
    curves = Curves(directory.name, rollouts.steps, measured, rollouts.plan.settings.max_staleness)
    try:
        draw(curves, directory.picture)
    except Exception as error:  # noqa: BLE001 - any error of plotting: it must not end the run
        _log.warning("the plot was not drawn: %s", error)


def _parameter_count(number: int) -> str:
    """A number of parameters with its unit."""
    if number < 50_000:
        return f"{number:,}"
    return f"{number / 1e6:.1f} M" if number < 1e9 else f"{number / 1e9:.1f} B"


def _ignore(rollouts: Rollouts) -> None:
    del rollouts


class Trainer:
    """Trains the policy of one config. Not reusable."""

    def __init__(
        self,
        config: Config,
        *,
        out: Path | None = None,
        name: str = "run",
        keep_going: bool = False,
    ) -> None:
        """`name` begins the name of a new directory, if `out` is None."""
        self.config = config
        check_sinks(self.config.metrics)
        self.rollouts: Rollouts | None = None
        self.description = ""
        """The policy, its size and its device, once the model is loaded."""
        self._name = name
        self._out = out
        self._keep_going = keep_going
        self._folder = model_folder(self.config.training)
        _check_plan(self.config)
        self._thread = DedicatedThread("learner")
        self._stack = contextlib.AsyncExitStack()
        self._activity = "loading the model"
        self._policy: Policy | None = None
        self._remote_policy: OpenAIPolicy | None = None
        """The same policy if remote servers read its weights from a folder."""
        self._learner: DistributedLearner | None = None

    @property
    def activity(self) -> str:
        """The current activity; empty while it rolls out and trains."""
        return self._activity or (self.rollouts.doing if self.rollouts is not None else "")

    @property
    def is_learning(self) -> bool:
        """Whether the learner is working, even if its caller was cancelled."""
        return self._thread.busy

    @property
    def weights(self) -> Path | None:
        """The folder of the last weights, which stays for remote servers; None without one."""
        return None if self._remote_policy is None else self._remote_policy.left

    @property
    def summary(self) -> RunSummary:
        """The whole run, after its end."""
        assert self.rollouts is not None, "the run is not over"
        return self.rollouts.summary

    async def run(self, *, planned: OnRollouts = _ignore, restored: OnRollouts = _ignore) -> None:
        """Train to the last step, or until the run is stopped. Raises the error that ends it early.

        Calls `planned` before anything starts and `restored` once the run has begun.
        """
        try:
            async with self._stack:
                await self._run(planned, restored)
        finally:
            # A learner that still works, after a second signal, ends with the process, like the
            # other ranks.
            if self._learner is not None and not self._thread.busy:
                await self._thread.do(self._learner.close)
            self._thread.close()

    async def _run(self, planned: OnRollouts, restored: OnRollouts) -> None:
        _warn_of_clips(self.config.training)
        # First: loading a model and validating tasks may take long.
        await check_servers(self.config)
        learner = self._learner = await self._thread.do(self._make_learner)
        self.description = self._describe(learner.parameters)
        self._policy = local_policy = make_local_policy(self.config, self._folder)
        if local_policy is not None:
            await self._stack.enter_async_context(local_policy)
            if self.config.policy.sampling == "asked":
                _warn_of_sampling(local_policy.sampling, self._folder)
        self.rollouts = rollouts = self._make_rollouts(local_policy)
        if local_policy is not None:
            local_policy.pausing = self._pausing(rollouts)
        planned(rollouts)
        self._activity = ""
        try:
            async with rollouts:
                self._activity = ""
                restored(rollouts)
                async with self._metrics(rollouts) as metrics:
                    await self._make_loop(rollouts, metrics).run()
        except BaseException as error:
            self._discard(rollouts)
            # A cancelled run must end at once.
            if isinstance(error, Exception) and rollouts.has_begun:
                await asyncio.to_thread(_draw, rollouts)
            raise
        await asyncio.to_thread(_draw, rollouts)

    def _discard(self, rollouts: Rollouts) -> None:
        """Remove the weights of a run that failed before its first trial."""
        if self._remote_policy is not None and not has_ledger(rollouts.directory.path):
            discard_weights(self._remote_policy, rollouts.directory)

    def _make_learner(self) -> DistributedLearner:
        return DistributedLearner(_learner(self.config))

    def _describe(self, parameters: int) -> str:
        """The policy for the first line: tiny policy, 0.4 M parameters, CPU."""
        device = find_device(self.config.training.device).type
        unit = "CPU" if device == "cpu" else "GPU"
        name = self.config.training.policy
        return f"{name} policy, {_parameter_count(parameters)} parameters, {unit}"

    def _make_rollouts(self, local_policy: Policy | None) -> Rollouts:
        return Rollouts(
            self.config,
            out=self._out,
            name=self._name,
            keep_going=self._keep_going,
            urls=() if local_policy is None else local_policy.urls,
            key=None if local_policy is None else local_policy.key,
            model=None if local_policy is None else local_policy.model,
            prepare=self._prepare,
        )

    async def _prepare(self, rollouts: Rollouts) -> None:
        """Publish the weights that the run continues from, before anything is generated."""
        for damaged in rollouts.restored.damaged:
            _log.warning("a checkpoint is damaged; using the one before it: %s", damaged)
        if self._policy is None:
            self._policy = self._remote_policy = make_remote_policy(self.config, rollouts.directory)
            self._remote_policy.pausing = self._pausing(rollouts)
            await self._stack.enter_async_context(self._policy)
        learner = self._learner
        assert learner is not None, "it is made first of all"
        if rollouts.checkpoint is not None:
            self._activity = f"loading {rollouts.checkpoint}"
            await self._thread.do(learner.load, rollouts.checkpoint)
        self._activity = "publishing the weights"
        weights = await self._thread.do(learner.weights)
        await self._policy.publish(weights, rollouts.version)
        self._activity = ""

    def _pausing(self, rollouts: Rollouts) -> Pausing:
        """A context manager factory that announces pauses for new weights to the run."""
        training = self.config.training
        # An operator who restarts a server does not wait for requests in flight.
        restarts = training.policy == "openai" and training.server == "path"
        drains = training.updating == "drain" and not restarts
        return functools.partial(rollouts.paused, drains=drains)

    def _make_loop(self, rollouts: Rollouts, metrics: MetricsRecorder) -> Loop:
        assert self._policy is not None and self._learner is not None, "they are made before"
        saved = None if rollouts.checkpoint is None else rollouts.version
        return Loop(
            self.config, rollouts, self._policy, self._learner, self._thread, metrics, saved
        )

    @contextlib.asynccontextmanager
    async def _metrics(self, rollouts: Rollouts) -> AsyncGenerator[MetricsRecorder]:
        directory, begin = rollouts.directory, rollouts.version.number
        sinks = await make_sinks(self.config, directory, begin=begin)
        metrics = MetricsRecorder(sinks)
        try:
            yield metrics
        finally:
            await metrics.close()
