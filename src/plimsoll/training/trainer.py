"""A run that trains: a policy, rollouts, a learner, and the loop over them.

    trainer = Trainer(Path("run.toml"))
    await trainer.run()
    print(trainer.summary)

Where `out` is the directory of a run already, it goes on with it.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from plimsoll.config.file import Config, load_config
from plimsoll.config.training import TrainingConfig
from plimsoll.ledger.journal.location import has_ledger
from plimsoll.runs.plan import Plan
from plimsoll.runs.policies import Served
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.status import RunSummary
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

__all__ = ["OnRollouts", "Trainer", "follow_rank_zero"]

OnRollouts = Callable[[Rollouts], None]
_log = logging.getLogger(__name__)


def follow_rank_zero(file: Path) -> None:
    """What ranks but the first do: their share of the learner's work, as long as there is any."""
    config = load_config(file)
    execute_commands(_learner(config))


def _learner(config: Config) -> Learner:
    return Learner(config.training, model_folder(config.training), steps=config.run.steps)


def _check_plan(config: Config) -> None:
    """Raises what making the plan would, before a model is loaded: that may take minutes."""
    serves = config.training.policy != "openai"
    Plan.make(config, Served(("http://127.0.0.1/v1",)) if serves else None)


def _warn_of(taste: GenerationParams, folder: Path) -> None:
    """Log probabilities are those of the model, whatever it is sampled with."""
    if taste == GenerationParams():
        return
    _log.warning(
        "%s has answers sampled at temperature %g, top_p %g and top_k %d, and log probabilities do "
        'not know of it: take [policy] sampling = "model" to train on what the model itself would '
        "say",
        folder / "generation_config.json",
        *(taste.temperature, taste.top_p, taste.top_k),
    )


def _warn_of_clips(training: TrainingConfig) -> None:
    usual = TrainingConfig()
    is_usual = (training.clip_low, training.clip_high) == (usual.clip_low, usual.clip_high)
    if training.clips or is_usual:
        return
    _log.warning(
        "[training] clip_low and clip_high change nothing: with one update of a batch the ratio of "
        "new to old probabilities is 1. Set updates to 2 or more to have it clipped"
    )


def _draw(rollouts: Rollouts) -> None:
    """A picture of the run. One that cannot be drawn is no reason to fail."""
    directory = rollouts.directory
    measured = [(one.step, one.reward) for one in rollouts.held_out if one.reward is not None]
    curves = Curves(directory.name, rollouts.steps, measured, rollouts.plan.settings.max_staleness)
    try:
        draw(curves, directory.picture)
    except Exception as error:  # noqa: BLE001 - whatever the drawing raises: the run has its own end
        _log.warning("no picture was drawn: %s", error)


def _many(number: int) -> str:
    """A number of parameters in the usual words."""
    if number < 50_000:
        return f"{number:,}"
    return f"{number / 1e6:.1f} M" if number < 1e9 else f"{number / 1e9:.1f} B"


def _nothing(rollouts: Rollouts) -> None:
    del rollouts


class Trainer:
    """Trains the policy of one config, once."""

    def __init__(self, file: Path, *, out: Path | None = None, keep_going: bool = False) -> None:
        self.config = load_config(file)
        check_sinks(self.config.metrics)
        self.rollouts: Rollouts | None = None
        self.told = ""
        """What is trained, and on what, once that is known."""
        self._file = file
        self._out = out
        self._keep_going = keep_going
        self._folder = model_folder(self.config.training)
        _check_plan(self.config)
        self._thread = DedicatedThread("learner")
        self._stack = contextlib.AsyncExitStack()
        self._doing = "loading the model"
        self._policy: Policy | None = None
        self._served: OpenAIPolicy | None = None
        """The same, where it is on servers that read its weights from a folder."""
        self._learner: DistributedLearner | None = None

    @property
    def doing(self) -> str:
        """What goes on now; empty while it rolls out and trains."""
        return self._doing or (self.rollouts.doing if self.rollouts is not None else "")

    @property
    def is_learning(self) -> bool:
        """Whether the learner is at work, whoever may have given up waiting for it."""
        return self._thread.busy

    @property
    def weights(self) -> Path | None:
        """The folder that the last weights stay in for the servers, where they read one."""
        return None if self._served is None else self._served.left

    @property
    def summary(self) -> RunSummary:
        """The whole run, after its end."""
        assert self.rollouts is not None, "the run is not over"
        return self.rollouts.summary

    async def run(self, *, planned: OnRollouts = _nothing, restored: OnRollouts = _nothing) -> None:
        """Train to the last step, or until it is stopped. Raises what ends it before.

        `planned` is told of the run before anything is started, `restored` once it has begun.
        """
        try:
            async with self._stack:
                await self._run(planned, restored)
        finally:
            # One at work, after a second signal, is ended with the process; so are other ranks.
            if self._learner is not None and not self._thread.busy:
                await self._thread.do(self._learner.close)
            self._thread.close()

    async def _run(self, planned: OnRollouts, restored: OnRollouts) -> None:
        _warn_of_clips(self.config.training)
        # First of all: to load a model, and to validate tasks, may take long.
        await check_servers(self.config)
        learner = self._learner = await self._thread.do(self._make_learner)
        self.told = self._describe(learner.parameters)
        self._policy = serving = make_local_policy(self.config, self._folder)
        if serving is not None:
            await self._stack.enter_async_context(serving)
            if self.config.policy.sampling == "asked":
                _warn_of(serving.taste, self._folder)
        self.rollouts = rollouts = self._make_rollouts(serving)
        if serving is not None:
            serving.pausing = self._pausing(rollouts)
        planned(rollouts)
        self._doing = ""
        try:
            async with rollouts:
                self._doing = ""
                restored(rollouts)
                async with self._metrics(rollouts) as metrics:
                    await self._make_loop(rollouts, metrics).run()
        except BaseException as error:
            self._discard(rollouts)
            # One that is cancelled is to end at once.
            if isinstance(error, Exception) and rollouts.has_begun:
                await asyncio.to_thread(_draw, rollouts)
            raise
        await asyncio.to_thread(_draw, rollouts)

    def _discard(self, rollouts: Rollouts) -> None:
        """The weights of a run that came to nothing before its first trial go with it."""
        if self._served is not None and not has_ledger(rollouts.directory.path):
            discard_weights(self._served, rollouts.directory)

    def _make_learner(self) -> DistributedLearner:
        return DistributedLearner(_learner(self.config))

    def _describe(self, parameters: int) -> str:
        """In the words of the first line: tiny policy, 0.4 M parameters, CPU."""
        device = find_device(self.config.training.device).type
        place = "CPU" if device == "cpu" else "GPU"
        name = self.config.training.policy
        return f"{name} policy, {_many(parameters)} parameters, {place}"

    def _make_rollouts(self, serving: Policy | None) -> Rollouts:
        return Rollouts(
            self._file,
            out=self._out,
            keep_going=self._keep_going,
            urls=() if serving is None else serving.urls,
            key=None if serving is None else serving.key,
            model=None if serving is None else serving.model,
            prepare=self._prepare,
        )

    async def _prepare(self, rollouts: Rollouts) -> None:
        """The weights that the run goes on from are served before anything is generated."""
        for damaged in rollouts.restored.damaged:
            _log.warning("a checkpoint is damaged, and the one before is used: %s", damaged)
        if self._policy is None:
            self._policy = self._served = make_remote_policy(self.config, rollouts.directory)
            self._served.pausing = self._pausing(rollouts)
            await self._stack.enter_async_context(self._policy)
        learner = self._learner
        assert learner is not None, "it is made first of all"
        if rollouts.checkpoint is not None:
            self._doing = f"loading {rollouts.checkpoint}"
            await self._thread.do(learner.load, rollouts.checkpoint)
        self._doing = "publishing the weights"
        weights = await self._thread.do(learner.weights)
        await self._policy.publish(weights, rollouts.version)
        self._doing = ""

    def _pausing(self, rollouts: Rollouts) -> Pausing:
        """Tells the run of pauses for new weights."""
        training = self.config.training
        # Whoever starts a server again does not wait for the answers under way.
        restarts = training.policy == "openai" and training.server == "path"
        drains = training.updating == "drain" and not restarts
        return functools.partial(rollouts.paused, drains=drains)

    def _make_loop(self, rollouts: Rollouts, metrics: MetricsRecorder) -> Loop:
        assert self._policy is not None and self._learner is not None, "they are made before"
        kept = None if rollouts.checkpoint is None else rollouts.version
        return Loop(self.config, rollouts, self._policy, self._learner, self._thread, metrics, kept)

    @contextlib.asynccontextmanager
    async def _metrics(self, rollouts: Rollouts) -> AsyncGenerator[MetricsRecorder]:
        directory, begin = rollouts.directory, rollouts.version.number
        sinks = await make_sinks(self.config, directory, begin=begin)
        metrics = MetricsRecorder(directory.metrics, sinks, begin=begin)
        try:
            yield metrics
        finally:
            await metrics.close()
