"""Plimsoll's losses equal those of TRL's GRPO trainer, for the same model and the same tokens.

| ours                                       | TRL                                         |
| ------------------------------------------ | ------------------------------------------- |
| averaging = "token"                        | loss_type "dapo"; "bnpo" where a batch is   |
|                                            | one micro-batch, as here                    |
| averaging = "sequence"                     | loss_type "grpo"                            |
| algorithm = "gspo", averaging = "sequence" | importance_sampling_level "sequence",       |
|                                            | loss_type "grpo"                            |
| clip_low, clip_high                        | epsilon, epsilon_high                       |
| kl                                         | beta, with use_bias_correction_kl           |
| entropy, with averaging = "token"          | entropy_coef                                |
| correction = "truncated"                   | importance_sampling_ratio of its vLLM mode  |

"dr_grpo" divides by a constant, samples × longest completion, not by the number of tokens: it is
our "token" times tokens / (samples × longest).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from learner_parts import config, items
from tiny_model import make_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from plimsoll.training.learner.inputs import Inputs, make_inputs
from plimsoll.training.learner.objective import Objective
from plimsoll.training.learner.scorer import Precision, Scorer
from plimsoll.training.learner.statistics import TokenStatistics
from plimsoll.training.learner.targets import TokenTargets
from plimsoll.training.samples import TrainingSample

pytest.importorskip("trl")

CPU = torch.device("cpu")
PROMPT = 3
"""The number of the first tokens of a sample that are never trained."""
LONGEST = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def make_trainer(folder: Path, out: Path, **values: Any) -> Any:
    """A real GRPO trainer, used only for its loss."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    arguments = GRPOConfig(
        output_dir=str(out),
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=LONGEST,
        **values,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.model.eval()
    return trainer


def padded(values: list[list[float]], dtype: torch.dtype) -> Tensor:
    longest = max(map(len, values))
    return torch.tensor([each + [0] * (longest - len(each)) for each in values], dtype=dtype)


def place_in_completions(values: Tensor, inputs: Inputs, samples: list[TrainingSample]) -> Tensor:
    """Put the value of each trained token at its position in the completion, as TRL does."""
    rows: list[list[float]] = []
    for row, sample in zip(inputs.rows, samples, strict=True):
        remaining = iter(values[row.start : row.start + len(row.targets)].tolist())
        rows.append([next(remaining) if is_trained else 0.0 for is_trained in sample.mask[PROMPT:]])
    return padded(rows, torch.float32)


def trl_loss(
    trainer: Any,
    samples: list[TrainingSample],
    inputs: Inputs,
    targets: TokenTargets,
    **more: Tensor,
):
    completions = [list(each.ids[PROMPT:]) for each in samples]
    tool_mask = padded([[float(each) for each in one.mask[PROMPT:]] for one in samples], torch.long)
    assert targets.proximal is not None
    loss = trainer.compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.tensor([list(each.ids[:PROMPT]) for each in samples]),
            "prompt_mask": torch.ones(len(samples), PROMPT, dtype=torch.long),
            "completion_ids": padded(cast(Any, completions), torch.long),
            "completion_mask": padded([[1.0] * len(each) for each in completions], torch.long),
            "tool_mask": tool_mask,
            "advantages": torch.tensor([each.advantage for each in samples]),
            "old_per_token_logps": place_in_completions(targets.proximal, inputs, samples),
            "num_items_in_batch": tool_mask.sum(),
            **more,
        },
    )
    return loss, norm_after(loss, trainer.model)


def norm_after(loss: Tensor, model: torch.nn.Module) -> float:
    model.zero_grad()
    loss.backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return torch.stack([each.norm() for each in gradients]).norm().item()


class OwnLoss:
    """Plimsoll's loss of one micro-batch, and the inputs of TRL's loss."""

    def __init__(self, folder: Path) -> None:
        # Every sample gets an advantage, because TRL computes also samples without one.
        self.samples = [replace(each, advantage=each.advantage or 0.3) for each in items()]
        self.inputs = make_inputs(self.samples, CPU)
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._scorer = Scorer(self.model, Precision(CPU, torch.float32))
        self._batch = self.inputs.micro_batch(range(len(self.samples)))
        with torch.no_grad():
            now = self._scorer(self._batch, False)[0]
        generator = torch.Generator().manual_seed(3)
        # As if updates had moved the policy: some tokens are beyond either clip.
        self.proximal = now + 0.4 * torch.randn(len(now), generator=generator)
        self.behaviour = self.proximal + 0.6 * torch.randn(len(now), generator=generator)
        self.reference = now + 0.3 * torch.randn(len(now), generator=generator)

    def targets(self) -> TokenTargets:
        return TokenTargets(self.behaviour, self.inputs.advantages, self.proximal, None, None)

    def loss(self, **values: Any) -> tuple[Tensor, float]:
        settings = config(**values)
        tokens, samples = self.inputs.tokens, len(self.samples)
        loss = Objective(settings).policy(
            self._batch,
            self._scorer(self._batch, bool(settings.entropy)),
            self.targets(),
            self.reference if settings.kl else None,
            tokens if settings.averaging == "token" else samples,
            TokenStatistics(CPU),
        )
        return loss, norm_after(loss, self.model)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kl", [0.0, 0.2])
@pytest.mark.parametrize(
    ("ours", "their"),
    [
        ({"averaging": "token"}, {"loss_type": "dapo"}),
        ({"averaging": "token"}, {"loss_type": "bnpo"}),
        ({"averaging": "token"}, {"loss_type": "dr_grpo"}),
        ({"averaging": "token", "entropy": 0.3}, {"loss_type": "dapo", "entropy_coef": 0.3}),
        ({"averaging": "sequence"}, {"loss_type": "grpo"}),
        (
            {"averaging": "sequence", "algorithm": "gspo"},
            {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        ),
    ],
    ids=str,
)
def test_loss_and_gradient_match_trl(
    folder: Path, tmp_path: Path, ours: dict, their: dict, kl: float
):
    own = OwnLoss(folder)
    trainer = make_trainer(
        folder, tmp_path, epsilon=0.2, epsilon_high=0.28, beta=kl, temperature=1.0, **their
    )
    more = {"ref_per_token_logps": place_in_completions(own.reference, own.inputs, own.samples)}
    expected, expected_norm = trl_loss(trainer, own.samples, own.inputs, own.targets(), **more)
    # Without a correction: the behaviour equals the policy at the start of the step.
    own.behaviour = own.proximal
    loss, norm = own.loss(clip_low=0.2, clip_high=0.28, kl=kl, **ours)
    scale = 1.0
    if their["loss_type"] == "dr_grpo":
        scale = own.inputs.tokens / (len(own.samples) * LONGEST)
    assert loss.item() * scale == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    assert norm * scale == pytest.approx(expected_norm, rel=1e-4)


@pytest.mark.filterwarnings("default")
def test_truncated_weights_match_the_importance_sampling_ratios_of_trl(
    folder: Path, tmp_path: Path
):
    own = OwnLoss(folder)
    trainer = make_trainer(folder, tmp_path, loss_type="dapo", beta=0.0, temperature=1.0)
    # The loss reads no more than this of its vLLM mode.
    trainer.use_vllm = True
    ratios = (own.proximal - own.behaviour).exp().clamp(max=2.0)
    more = {"importance_sampling_ratio": place_in_completions(ratios, own.inputs, own.samples)}
    expected, expected_norm = trl_loss(trainer, own.samples, own.inputs, own.targets(), **more)
    loss, norm = own.loss(clip_low=0.2, clip_high=0.2, correction_cap=2.0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert norm == pytest.approx(expected_norm, rel=1e-4)
