"""The learner: samples in, better weights out. It does not depend on the source of the samples.

- A step trains on one batch and makes `updates` optimizer updates, each on another part of it.
- The loss of an update is the mean over its whole part, independent of how the part is split into
  micro-batches and over ranks. Samples with advantage 0 count in that mean. They go through the
  model only if they contribute something else: KL distance, entropy or values.
- An update with a non-finite loss or gradient is skipped: weights and moments stay unchanged.
- A step that raises does not count. `is_whole` tells whether the weights are still consistent.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from plimsoll.config.training import TrainingConfig
from plimsoll.core.errors import TrainingError
from plimsoll.runs.files.steps import StepReport
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
from plimsoll.training.models import find_device, is_out_of_memory
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.samples import TrainingSample

__all__ = ["Learner"]


@dataclass(slots=True, eq=False)
class _Work:
    """The state of a running step."""

    inputs: Inputs
    share: float
    """The scheduled share of the learning rate."""
    statistics: TokenStatistics
    begun: float
    updates: int = 0
    micro_batches: int = 0
    norms: list[float] = field(default_factory=list[float])
    left_out: int = 0
    """Skipped updates."""
    why: str = ""
    """The reason for a skipped update, or for making none at all."""

    @property
    def skipped(self) -> str:
        """The reason why the weights did not change; empty if they did."""
        return self.why if self.left_out == self.updates else ""


class Learner:
    """Trains the model of a folder. Under torchrun every rank has one and makes the same calls."""

    def __init__(self, config: TrainingConfig, path: Path, *, steps: int | None) -> None:
        self._schedule = make_schedule(config, steps)
        self._config = config
        self._path = path
        self._device = ranks.own_device(find_device(config.device))
        self._here = ranks.init(self._device)
        self._networks = Networks(config, path, self._device)
        self._objective = Objective(config)
        self._runner = MicroBatchRunner(config.micro_tokens, self._here)
        self._generator = torch.Generator().manual_seed(config.seed)
        self._steps = 0
        self._bad = 0
        self._is_whole = True

    @property
    def bad_steps(self) -> int:
        """Consecutive steps that skipped all of their updates."""
        return self._bad

    @property
    def is_whole(self) -> bool:
        """Whether the weights result from complete steps. A step that raised may have changed some
        of them, since updates and the tensors of an update change one after another."""
        return self._is_whole

    @property
    def micro_tokens(self) -> int:
        """The limit of tokens in one micro-batch; reduced after an out-of-memory error."""
        return self._runner.micro_tokens

    @property
    def parameters(self) -> int:
        """The number of parameters of the policy over all ranks; tied weights count once."""
        return sum(each.numel() for each in self._networks.policy.parameters())

    def check(self, samples: Sequence[TrainingSample]) -> None:
        """Raise `TrainingError` for a sample that the model cannot be trained on."""
        check_samples(samples, self._networks.vocabulary)

    def step(self, samples: Sequence[TrainingSample]) -> StepReport:
        """Train on the samples of one batch. Raises `TrainingError` like `check`, and if memory
        runs out."""
        self.check(samples)
        was_whole, drawn = self._is_whole, self._generator.get_state()
        try:
            report = self._step(samples)
        except Exception as error:
            self._clear_gradients()
            self._generator.set_state(drawn)
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"out of memory in a step of {len(samples)} samples on {self._device}. Set "
                "[training] recompute = true, lower micro_tokens or [run] batch_groups, use a "
                "smaller model, or train on more GPUs with torchrun"
            ) from error
        self._is_whole = was_whole
        return report

    def _step(self, samples: Sequence[TrainingSample]) -> StepReport:
        begun = time.perf_counter()
        inputs = make_inputs(samples, self._device)
        work = _Work(inputs, self._schedule(self._steps + 1), TokenStatistics(self._device), begun)
        trained = self._trained(inputs)
        if not trained:
            why = "all rewards of each group are equal" if inputs.rows else "there are no samples"
            work.why = f"nothing to learn: {why}"
        else:
            self._make_updates(work, trained)
            self._bad = self._bad + 1 if work.skipped else 0
        report = self._report(work)
        self._steps += 1  # a step that raises does not count
        return report

    def weights(self) -> Weights:
        """The current weights, not copied: the next step changes these tensors. Collective: every
        rank must call it."""
        return Weights(tensors=saved_state.tensors_of(self._networks.policy.model), base=self._path)

    def gather(self) -> saved_state.Gathered:
        """The state that `write` writes. Collective."""
        progress = saved_state.Progress(self._steps, self._bad, self._generator.get_state())
        return saved_state.gather(self._networks, progress)

    def write(self, gathered: saved_state.Gathered, folder: Path) -> None:
        """Write a Hugging Face folder with the gathered state, on the first rank only."""
        saved_state.write(gathered, self._networks, self._path, folder)

    def load(self, folder: Path) -> None:
        """Restore the state of a folder of `write`, bit for bit, on any number of ranks."""
        progress = saved_state.load(self._networks, folder)
        self._steps, self._bad = progress.steps, progress.bad_steps
        self._generator.set_state(progress.generator)
        self._is_whole = True

    def _make_updates(self, work: _Work, trained: frozenset[int]) -> None:
        targets = compute_targets(
            self._config, self._networks, self._runner, work.inputs, sorted(trained)
        )
        for part in self._parts(work.inputs):
            self._update(work, targets, part, [index for index in part if index in trained])

    def _trained(self, inputs: Inputs) -> frozenset[int]:
        """The rows that go through the model."""
        every = bool(self._config.kl or self._config.entropy or self._networks.critic)
        rows = enumerate(inputs.rows)
        return frozenset(index for index, row in rows if every or row.advantage)

    def _parts(self, inputs: Inputs) -> list[list[int]]:
        """The rows of each update: whole rollouts, in random order if there are several updates."""
        updates = self._config.updates
        if updates == 1:
            return [list(range(len(inputs.rows)))]
        rollouts: dict[str, list[int]] = {}
        for index, row in enumerate(inputs.rows):
            rollouts.setdefault(row.rollout, []).append(index)
        rows = list(rollouts.values())
        drawn: list[int] = numbers(torch.randperm(len(rows), generator=self._generator))
        return [
            [index for position in drawn[first::updates] for index in rows[position]]
            for first in range(updates)
        ]

    def _update(
        self, work: _Work, targets: TokenTargets, part: Sequence[int], trained: Sequence[int]
    ) -> None:
        """One optimizer update on a part of the batch. `trained` are its rows that go through the
        model."""
        if not trained:
            return
        statistics = TokenStatistics(self._device)
        rows = [work.inputs.rows[index] for index in part]
        tokens = sum(len(row.targets) for row in rows)
        by_token = self._config.averaging == "token"
        totals = _Totals(tokens, tokens if by_token else len({row.rollout for row in rows}))

        def clear() -> None:
            statistics.clear()
            self._clear_gradients()

        def accumulate(batch: MicroBatch) -> None:
            self._accumulate(batch, targets, totals, statistics)

        work.micro_batches += self._runner.run(work.inputs, trained, accumulate, clear)
        statistics.reduce()
        norms = [optimizer.clip() for optimizer in self._networks.optimizers]
        work.updates += 1
        work.norms += norms[:1]
        work.statistics.include(statistics)
        bad = _why_bad(statistics, norms)
        if bad:
            work.left_out += 1
            work.why = bad
            self._clear_gradients()
            return
        self._is_whole = False
        for optimizer in self._networks.optimizers:
            optimizer.step(work.share)

    def _clear_gradients(self) -> None:
        for optimizer in self._networks.optimizers:
            optimizer.clear()

    def _accumulate(
        self,
        batch: MicroBatch,
        targets: TokenTargets,
        totals: "_Totals",
        statistics: TokenStatistics,
    ) -> None:
        """Add the gradients of a micro-batch."""
        networks, objective = self._networks, self._objective
        reference = None
        if networks.reference is not None:
            with torch.no_grad():
                reference = networks.reference(batch, False)[0]
        scores = networks.policy(batch, bool(self._config.entropy))
        loss = objective.policy(batch, scores, targets, reference, totals.policy, statistics)
        # The gradients of ranks are averaged; the loss needs their sum.
        backward(loss * self._here.size)
        if networks.critic is not None:
            loss = objective.critic(
                batch, networks.critic(batch), targets, totals.tokens, statistics
            )
            backward(loss * self._here.size)

    def _report(self, work: _Work) -> StepReport:
        statistics = work.statistics
        loss = statistics.total("loss")
        norm = max(work.norms, default=math.nan)
        return StepReport(
            loss=None if loss is None else loss / work.updates,
            grad_norm=norm if math.isfinite(norm) else None,
            kl=statistics.mean("kl"),
            reference_kl=statistics.mean("reference_kl"),
            entropy=statistics.mean("entropy"),
            ratio_mean=statistics.mean("ratio"),
            ratio_max=statistics.largest_ratio(),
            clipped=statistics.mean("clipped"),
            weight_mean=statistics.mean("weight"),
            truncated=statistics.mean("truncated"),
            value_loss=statistics.mean("value_loss"),
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
    """The divisors of the sums over an update."""

    tokens: int
    policy: int


def _why_bad(statistics: TokenStatistics, norms: Sequence[float]) -> str:
    if statistics.total("loss") is None:
        return "the loss is not finite"
    return "" if all(map(math.isfinite, norms)) else "the gradient is not finite"
