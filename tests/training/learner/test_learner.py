"""A step computes its formulas, for any layout of the samples."""

import math
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import config, distance, flat, item, items, make_learner, tokens
from tiny_model import make_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from plimsoll.runs.files.steps import StepReport
from plimsoll.training.learner.learner import Learner
from plimsoll.training.samples import TrainingSample


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def run_step(
    folder: Path, samples: list[TrainingSample], **values: Any
) -> tuple[StepReport, Tensor]:
    learner = make_learner(folder, **values)
    return learner.step(samples), flat(learner)


def from_formulas(
    folder: Path, samples: list[TrainingSample], **values: Any
) -> tuple[float, float]:
    """Loss and norm of the gradient, computed from the formulas, token by token."""
    settings = config(**values)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rollouts: dict[str, list[Tensor]] = {}
    for sample in samples:
        model_logprobs = model(input_ids=torch.tensor(sample.ids)[None]).logits[0].log_softmax(-1)
        at = [index for index in range(1, len(sample.ids)) if sample.mask[index]]
        new = torch.stack([model_logprobs[index - 1, sample.ids[index]] for index in at])
        behaviour = torch.tensor([sample.logprobs[index] for index in at])
        old = new.detach() if settings.correction == "truncated" else behaviour
        ratio = (new - old).exp()
        if settings.algorithm == "gspo":
            ratio = (new - old).mean().exp().expand(len(at))
        clamped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
        each = -torch.minimum(ratio * sample.advantage, clamped * sample.advantage)
        if settings.correction == "truncated":
            weight = old - behaviour
            if settings.algorithm == "gspo":  # one weight for the whole sample, like the ratio
                weight = weight.mean().expand(len(at))
            each = each * weight.exp().clamp(max=settings.correction_cap)
        for index in range(len(at)):
            before = model_logprobs[at[index] - 1]
            each[index] += settings.entropy * (before.exp() * before).sum()
        rollouts.setdefault(sample.ticket, []).append(each)
    losses = [torch.cat(each) for each in rollouts.values()]
    if settings.averaging == "sequence":
        loss = torch.stack([each.mean() for each in losses]).mean()
    else:
        loss = torch.cat(losses).sum() / tokens(samples)
    loss.backward()
    norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
    return loss.item(), norm.item()


@pytest.mark.parametrize("averaging", ["token", "sequence"])
@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
@pytest.mark.parametrize("correction", ["none", "truncated"])
@pytest.mark.parametrize("entropy", [0.0, 0.1])
def test_loss_and_gradient_match_the_formula(
    folder: Path, averaging: str, algorithm: str, correction: str, entropy: float
):
    values = {
        "averaging": averaging,
        "algorithm": algorithm,
        "correction": correction,
        "entropy": entropy,
    }
    expected, norm = from_formulas(folder, items(), **values)
    report, _ = run_step(folder, items(), **values)
    assert report.loss == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert report.grad_norm == pytest.approx(norm, rel=1e-4)


def branched() -> list[TrainingSample]:
    """Two rollouts: one of three branches, one of a single sample."""
    some = [replace(each, advantage=1.0, ticket="task-0.0") for each in items()[:3]]
    other = replace(items()[4], advantage=-0.7, ticket="task-0.1")
    return [some[0], other, *some[1:]]


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_every_rollout_has_the_same_weight_for_any_number_of_branches(folder: Path, algorithm: str):
    values = {"averaging": "sequence", "algorithm": algorithm}
    expected, norm = from_formulas(folder, branched(), **values)
    report, _ = run_step(folder, branched(), **values)
    assert report.loss == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert report.grad_norm == pytest.approx(norm, rel=1e-4)
    # With practically constant weights the number of updates does not change the loss: no update
    # has only some branches of a rollout.
    parts, _ = run_step(folder, branched(), updates=2, learning_rate=1e-12, **values)
    assert parts.loss == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_kl_penalty_is_0_at_first_and_then_positive(folder: Path):
    learner = make_learner(folder, kl=0.5, learning_rate=1e-2)
    plain = make_learner(folder, entropy=1e-12)
    first = learner.step(items())
    assert first.reference_kl == pytest.approx(0, abs=1e-6)
    assert first.loss == pytest.approx(plain.step(items()).loss, abs=1e-6)
    second = learner.step(items())
    assert second.reference_kl is not None and second.reference_kl > 0.01


def test_ppo_starts_with_values_of_0_and_learns_them(folder: Path):
    learner = make_learner(
        folder, algorithm="ppo", critic_rate=1e-2, normalize=False, value_clip=10.0
    )
    samples = items()
    first = learner.step(samples)
    # With V = 0 and γ = 1 the return of a token k before the last is R · λ^k.
    squares = [
        (each.reward * 0.95**k) ** 2 / 2 for each in samples for k in range(sum(each.mask[1:]))
    ]
    assert first.value_loss == pytest.approx(sum(squares) / len(squares), rel=1e-5)
    later = [learner.step(samples).value_loss for _ in range(8)]
    assert later[-1] is not None and later[-1] < first.value_loss / 2


def with_model_logprobs(folder: Path, sample: TrainingSample) -> TrainingSample:
    """The sample with the log probabilities of the model in the folder."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model_logprobs = (
        model(input_ids=torch.tensor(sample.ids)[None]).logits[0].log_softmax(-1).detach()
    )
    logprobs = [0.0] + [
        float(model_logprobs[at - 1, sample.ids[at]]) for at in range(1, len(sample.ids))
    ]
    return replace(sample, logprobs=array("f", logprobs))


def test_advantages_of_ppo_are_whitened_over_the_batch_on_request(folder: Path):
    samples = [with_model_logprobs(folder, each) for each in items(4)]
    # The samples fit the weights, so every ratio is 1: the loss is minus the mean advantage.
    whitened = make_learner(folder, algorithm="ppo").step(samples)
    assert whitened.loss == pytest.approx(0, abs=1e-5)
    plain = make_learner(folder, algorithm="ppo", normalize=False).step(samples)
    returns = [each.reward * 0.95**k for each in samples for k in range(sum(each.mask[1:]))]
    assert plain.loss == pytest.approx(-sum(returns) / len(returns), rel=1e-4)
    assert plain.kl == pytest.approx(0, abs=1e-6)


def test_steps_raise_the_probability_of_rewarded_tokens(folder: Path):
    good = item([7] + [11] * 6, [0] + [1] * 6, advantage=1.0, ticket="a.1")
    bad = item([7] + [13] * 6, [0] + [1] * 6, advantage=-1.0, ticket="a.2")
    learner = make_learner(folder, learning_rate=3e-3, correction="none", clip_high=1e6)
    before = learner.step([good]).ratio_mean
    for _ in range(5):
        learner.step([good, bad])
    after = learner.step([good]).ratio_mean
    assert before is not None and after is not None and after > 2 * before


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "ppo"])
def test_masked_tokens_have_no_effect(folder: Path, algorithm: str):
    plain = items()
    changed: list[TrainingSample] = []
    for sample in plain:
        last = max(at for at in range(len(sample.mask)) if sample.mask[at])
        logprobs = [
            each if sample.mask[at] else math.nan for at, each in enumerate(sample.logprobs)
        ]
        changed.append(
            replace(
                sample,
                ids=sample.ids[: last + 1] + array("i", [99, 98, 97]),
                mask=sample.mask[: last + 1] + bytearray(3),
                logprobs=array("f", logprobs[: last + 1] + [math.inf] * 3),
            )
        )
    report, weights = run_step(folder, changed, algorithm=algorithm)
    expected, expected_weights = run_step(folder, plain, algorithm=algorithm)
    assert report.loss == expected.loss
    assert torch.equal(weights, expected_weights)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"algorithm": "gspo", "averaging": "sequence"},
        {"algorithm": "ppo"},
        {"kl": 0.1, "entropy": 0.01},
    ],
    ids=str,
)
def test_order_and_size_of_micro_batches_have_no_effect(folder: Path, values: dict):
    expected, expected_weights = run_step(folder, items(), **values)
    for samples, micro_tokens in ((items()[::-1], 8192), (items(), 50), (items(), 1)):
        report, weights = run_step(folder, samples, micro_tokens=micro_tokens, **values)
        assert report.loss == pytest.approx(expected.loss, abs=1e-6)
        assert report.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        assert distance(weights, expected_weights) < 1e-3
    assert report.micro_batches > expected.micro_batches == 1


def test_a_sample_without_an_advantage_counts_in_the_mean_and_is_not_computed(folder: Path):
    alone = items(3)
    equal = item([3] * 60, [0] * 40 + [1] * 20, advantage=0.0)
    without, _ = run_step(folder, alone)
    report, _ = run_step(folder, [*alone, equal])
    assert without.loss is not None
    share = tokens(alone) / (tokens(alone) + 20)
    assert report.loss == pytest.approx(without.loss * share, rel=1e-5)
    assert report.entropy == pytest.approx(without.entropy, rel=1e-6)
    assert (report.tokens, report.samples) == (tokens(alone) + 20, 4)
    computed, _ = run_step(folder, [*alone, equal], entropy=1e-9)
    assert computed.loss == pytest.approx(report.loss, rel=1e-5)
    assert computed.entropy != pytest.approx(without.entropy, rel=1e-6)


def test_every_figure_of_the_correction_is_computed_over_its_tokens(folder: Path):
    sample = with_model_logprobs(folder, item([5, 6, 7, 8], [0, 1, 1, 1]))
    # The policy gives the tokens 3, 1 and ½ times the probability of their generation.
    sample.logprobs[1] -= math.log(3)
    sample.logprobs[3] += math.log(2)
    report, _ = run_step(folder, [sample])
    assert report.weight_mean == pytest.approx((2 + 1 + 0.5) / 3, rel=1e-5)
    assert report.truncated == pytest.approx(1 / 3)
    expected = (3 - 1 - math.log(3)) + (0.5 - 1 + math.log(2))
    assert report.kl == pytest.approx(expected / 3, rel=1e-4)


def test_several_updates_are_clipped_around_the_start_of_the_step(folder: Path):
    samples = [replace(each, advantage=each.advantage or 0.3) for each in items()]
    report, _ = run_step(folder, samples, updates=4, learning_rate=3e-3)
    assert report.micro_batches == 4
    assert report.ratio_max is not None and report.ratio_max > 1.01
    # The importance weights come from the policy before the first update, in every update.
    once, _ = run_step(folder, samples)
    assert report.weight_mean == pytest.approx(once.weight_mean, rel=1e-5)
    assert report.kl == pytest.approx(once.kl, rel=1e-5)


def test_there_are_at_most_as_many_updates_as_samples(folder: Path):
    report, _ = run_step(folder, items(2), updates=5)
    assert report.micro_batches == 2 and report.skipped == ""


@pytest.mark.parametrize("updates", [1, 3])
def test_the_same_seed_gives_identical_weights(folder: Path, updates: int):
    first, second = (run_step(folder, items(), updates=updates, seed=7) for _ in range(2))
    assert torch.equal(first[1], second[1])
    if updates > 1:
        other = run_step(folder, items(), updates=updates, seed=8)
        assert not torch.equal(first[1], other[1])


def test_the_first_step_of_a_warmup_already_changes_the_weights(folder: Path):
    learner = make_learner(folder, warmup_steps=4)
    before = flat(learner)
    assert learner.step(items()).learning_rate == pytest.approx(0.25e-4)
    assert not torch.equal(before, flat(learner))


def test_steps_compute_in_bfloat16_and_weights_stay_float32(folder: Path):
    exact, _ = run_step(folder, items())
    learner = Learner(
        config(learning_rate=1e-4).model_copy(update={"dtype": "bfloat16"}), folder, steps=20
    )
    report = learner.step(items())
    assert report.loss == pytest.approx(exact.loss, rel=0.1) and report.loss != exact.loss
    assert {each.dtype for each in learner.weights().tensors.values()} == {torch.float32}


@pytest.mark.parametrize("samples", [[], [item([1, 2], [0, 1], advantage=0.0)]])
def test_without_advantages_the_weights_do_not_change_and_the_report_says_so(folder: Path, samples):
    learner = make_learner(folder, weight_decay=0.1)
    before = flat(learner)
    report = learner.step(samples)
    assert report.skipped.startswith("nothing to learn")
    assert report.loss is None and report.micro_batches == 0
    assert torch.equal(before, flat(learner)) and learner.bad_steps == 0
