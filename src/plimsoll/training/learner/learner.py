"""The learner: samples in, better weights out. It knows nothing of where samples come from.

A step is made of one batch. It changes the weights in `updates` updates, each of another part
of the batch, and each by a mean over that part as a whole, however it is cut into micro-batches
and shared among ranks. Samples without an advantage count in that mean; they go through the
model only where something else is to be had of them: distance, entropy, values.

An update whose loss or gradient is not finite is left out: weights and moments stay. A step that
raises is none; `is_whole` says whether it left the weights as they were.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from plimsoll.config.training import TrainingConfig
from plimsoll.core.errors import TrainingError
from plimsoll.training.learner import ranks, saved_state
from plimsoll.training.learner.inputs import (
    Inputs,
    MicroBatch,
    check_samples,
    make_inputs,
)
from plimsoll.training.learner.micro_batches import MicroBatchRunner
from plimsoll.training.learner.networks import Networks
from plimsoll.training.learner.objective import Objective
from plimsoll.training.learner.optimizer import make_schedule
from plimsoll.training.learner.statistics import TokenStatistics
from plimsoll.training.learner.targets import TokenTargets, compute_targets
from plimsoll.training.learner.torch_calls import backward, numbers
from plimsoll.training.metrics.step_metrics import StepReport
from plimsoll.training.models import find_device, is_out_of_memory
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.samples import TrainingSample

__all__ = ["Learner"]


@dataclass(slots=True, eq=False)
class _Work:
    """A step, as far as it has come."""

    inputs: Inputs
    share: float
    """Of the learning rate."""
    figures: TokenStatistics
    begun: float
    updates: int = 0
    micro_batches: int = 0
    norms: list[float] = field(default_factory=list[float])
    left_out: int = 0
    """How many of the updates changed nothing."""
    why: str = ""
    """Why one was left out, or why there was none."""

    @property
    def skipped(self) -> str:
        """Why nothing was changed, where that is so."""
        return self.why if self.left_out == self.updates else ""


class Learner:
    """Trains the model of a folder. Under torchrun every rank has one and calls the same."""

    def __init__(self, config: TrainingConfig, path: Path, *, steps: int | None) -> None:
        self._schedule = make_schedule(config, steps)
        self._config = config
        self._path = path
        self._device = ranks.own_device(find_device(config.device))
        self._here = ranks.init(self._device)
        self._nets = Networks(config, path, self._device)
        self._objective = Objective(config)
        self._passes = MicroBatchRunner(config.micro_tokens, self._here)
        self._generator = torch.Generator().manual_seed(config.seed)
        self._steps = 0
        self._bad = 0
        self._is_whole = True

    @property
    def bad_steps(self) -> int:
        """How many steps in a row left out all of their updates."""
        return self._bad

    @property
    def is_whole(self) -> bool:
        """Whether the weights are of whole steps. One that raised may have changed some of them:
        an optimizer changes them one after another, and updates come one after another."""
        return self._is_whole

    @property
    def micro_tokens(self) -> int:
        """The most that go through the model at once: fewer once memory ran out."""
        return self._passes.micro_tokens

    @property
    def parameters(self) -> int:
        """How many there are of the policy, on all ranks. What layers share counts once."""
        return sum(each.numel() for each in self._nets.policy.parameters())

    def check(self, items: Sequence[TrainingSample]) -> None:
        """Raises where an item cannot be what the model is trained on."""
        check_samples(items, self._nets.vocabulary)

    def step(self, items: Sequence[TrainingSample]) -> StepReport:
        """One step of the optimizer for each update. Raises what `check` does, and `TrainingError`
        where memory runs out."""
        self.check(items)
        was_whole, drawn = self._is_whole, self._generator.get_state()
        try:
            report = self._step(items)
        except Exception as error:
            self._forget()
            self._generator.set_state(drawn)
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"out of memory in a step of {len(items)} samples, on {self._device}. Set "
                "[training] recompute = true where it is not, micro_tokens or [run] batch_groups "
                "lower, take a smaller model, or train on more GPUs with torchrun"
            ) from error
        self._is_whole = was_whole
        return report

    def _step(self, items: Sequence[TrainingSample]) -> StepReport:
        begun = time.perf_counter()
        inputs = make_inputs(items, self._device)
        work = _Work(inputs, self._schedule(self._steps + 1), TokenStatistics(self._device), begun)
        trained = self._trained(inputs)
        if not trained:
            why = "all rewards of each group are equal" if inputs.rows else "there are no samples"
            work.why = f"nothing to learn: {why}"
        else:
            self._make(work, trained)
            self._bad = self._bad + 1 if work.skipped else 0
        report = self._report(work)
        self._steps += 1  # one that raises is none
        return report

    def weights(self) -> Weights:
        """As they are now: the next step changes these very tensors. Every rank has to ask."""
        return Weights(tensors=saved_state.tensors_of(self._nets.policy.model), base=self._path)

    def save(self, folder: Path) -> None:
        """A Hugging Face folder, with what `load` needs beside it. Every rank has to call it."""
        gathered = self.gather()
        if not self._here.rank:
            self.write(gathered, folder)

    def gather(self) -> saved_state.Gathered:
        """What `write` writes. Every rank has to call it."""
        progress = saved_state.Progress(self._steps, self._bad, self._generator.get_state())
        return saved_state.gather(self._nets, progress)

    def write(self, gathered: saved_state.Gathered, folder: Path) -> None:
        """The second half of `save`, for the first rank alone."""
        saved_state.write(gathered, self._nets, self._path, folder)

    def load(self, folder: Path) -> None:
        """Goes on, to the bit, from where `save` was called, on however many ranks."""
        progress = saved_state.load(self._nets, folder)
        self._steps, self._bad = progress.steps, progress.bad_steps
        self._generator.set_state(progress.generator)
        self._is_whole = True

    def _make(self, work: _Work, trained: frozenset[int]) -> None:
        known = compute_targets(
            self._config, self._nets, self._passes, work.inputs, sorted(trained)
        )
        for part in self._parts(work.inputs):
            self._update(work, known, part, [index for index in part if index in trained])

    def _trained(self, inputs: Inputs) -> frozenset[int]:
        """The rows that go through the model."""
        every = bool(self._config.kl or self._config.entropy or self._nets.critic)
        rows = enumerate(inputs.rows)
        return frozenset(index for index, row in rows if every or row.advantage)

    def _parts(self, inputs: Inputs) -> list[list[int]]:
        """The rows of each update: whole rollouts, drawn at random for several updates."""
        updates = self._config.updates
        if updates == 1:
            return [list(range(len(inputs.rows)))]
        rollouts: dict[str, list[int]] = {}
        for index, row in enumerate(inputs.rows):
            rollouts.setdefault(row.rollout, []).append(index)
        rows = list(rollouts.values())
        drawn: list[int] = numbers(torch.randperm(len(rows), generator=self._generator))
        return [
            [index for place in drawn[first::updates] for index in rows[place]]
            for first in range(updates)
        ]

    def _update(
        self, work: _Work, known: TokenTargets, part: Sequence[int], trained: Sequence[int]
    ) -> None:
        """One step of the optimizer, of those of a part's rows that go through the model."""
        if not trained:
            return
        figures = TokenStatistics(self._device)
        rows = [work.inputs.rows[index] for index in part]
        tokens = sum(len(row.targets) for row in rows)
        by_token = self._config.averaging == "token"
        totals = _Totals(tokens, tokens if by_token else len({row.rollout for row in rows}))

        def clear() -> None:
            figures.clear()
            self._forget()

        def learn(batch: MicroBatch) -> None:
            self._learn(batch, known, totals, figures)

        work.micro_batches += self._passes.run(work.inputs, trained, learn, clear)
        figures.meet()
        norms = [optimizer.clip() for optimizer in self._nets.optimizers]
        work.updates += 1
        work.norms += norms[:1]
        work.figures.include(figures)
        bad = _why_bad(figures, norms)
        if bad:
            work.left_out += 1
            work.why = bad
            self._forget()
            return
        self._is_whole = False
        for optimizer in self._nets.optimizers:
            optimizer.step(work.share)

    def _forget(self) -> None:
        for optimizer in self._nets.optimizers:
            optimizer.clear()

    def _learn(
        self, batch: MicroBatch, known: TokenTargets, totals: "_Totals", figures: TokenStatistics
    ) -> None:
        """Adds what a micro-batch says to the gradients."""
        nets, objective = self._nets, self._objective
        reference = None
        if nets.reference is not None:
            with torch.no_grad():
                reference = nets.reference(batch, False)[0]
        scores = nets.policy(batch, bool(self._config.entropy))
        loss = objective.policy(batch, scores, known, reference, totals.policy, figures)
        # Ranks' gradients are averaged, and what is wanted is their sum.
        backward(loss * self._here.size)
        if nets.critic is not None:
            loss = objective.critic(batch, nets.critic(batch), known, totals.tokens, figures)
            backward(loss * self._here.size)

    def _report(self, work: _Work) -> StepReport:
        figures = work.figures
        loss = figures.total("loss")
        norm = max(work.norms, default=math.nan)
        return StepReport(
            loss=None if loss is None else loss / work.updates,
            grad_norm=norm if math.isfinite(norm) else None,
            kl=figures.mean("kl"),
            reference_kl=figures.mean("reference_kl"),
            entropy=figures.mean("entropy"),
            ratio_mean=figures.mean("ratio"),
            ratio_max=figures.largest_ratio(),
            clipped=figures.mean("clipped"),
            weight_mean=figures.mean("weight"),
            truncated=figures.mean("truncated"),
            value_loss=figures.mean("value_loss"),
            tokens=work.inputs.tokens,
            samples=len(work.inputs.rows),
            learning_rate=self._config.learning_rate * work.share,
            micro_batches=work.micro_batches,
            left_out=work.left_out,
            seconds=time.perf_counter() - work.begun,
            skipped=work.skipped,
        )


@dataclass(frozen=True, slots=True)
class _Totals:
    """What the sums over an update are divided by."""

    tokens: int
    policy: int


def _why_bad(figures: TokenStatistics, norms: Sequence[float]) -> str:
    if figures.total("loss") is None:
        return "the loss is not finite"
    return "" if all(map(math.isfinite, norms)) else "the gradient is not finite"
