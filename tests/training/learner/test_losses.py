"""Losses against numbers computed by hand, and gradients against finite differences."""

import math

import pytest
import torch
from torch import Tensor

from plimsoll.training.learner.objective import (
    average,
    clipped,
    clipped_surrogate,
    distance,
    log_ratio,
    sequence_ratio,
    token_ratio,
    truncated_weight,
    value_loss,
)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, *expected: float) -> bool:
    return torch.allclose(found, vector(*expected), rtol=1e-12, atol=1e-12)


ROWS = torch.tensor([0, 0, 1])
SIZES = torch.tensor([2, 1])
"""Two samples: of two trained tokens, and of one."""


def test_the_ratio_of_a_token_is_the_quotient_of_its_probabilities():
    new, old = vector(0.5, 0.2).log(), vector(0.25, 0.4).log()
    assert close(token_ratio(new, old), 2.0, 0.5)


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens():
    new, old = vector(0.8, 0.1, 0.3).log(), vector(0.1, 0.2, 0.1).log()
    # √(8 · ½) = 2 for both tokens of the first sample; 3 for the other.
    assert close(sequence_ratio(new, old, ROWS, SIZES), 2.0, 2.0, 3.0)


def test_an_importance_weight_is_capped_and_has_no_gradient():
    proximal = vector(0.9, 0.2).log().requires_grad_()
    weight = truncated_weight(token_ratio(proximal, vector(0.3, 0.4).log()), 2.0)
    assert close(weight, 2.0, 0.5)
    assert not weight.requires_grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "is_clipped"),
    [
        (1.1, 2.0, 2.2, False),
        (1.5, 2.0, 2.6, True),  # 1.3 · 2
        (0.5, 2.0, 1.0, False),  # below the range, but the gradient leads back into it
        (0.5, -2.0, -1.6, True),  # 0.8 · −2
        (1.5, -2.0, -3.0, False),
    ],
)
def test_the_surrogate_is_clipped_in_the_direction_of_the_advantage(
    ratio: float, advantage: float, expected: float, is_clipped: bool
):
    found = clipped_surrogate(vector(ratio), vector(advantage), 0.2, 0.3)
    assert close(found, expected)
    assert clipped(vector(ratio), vector(advantage), 0.2, 0.3).item() is is_clipped


def test_only_clipped_tokens_have_no_gradient():
    new = vector(0.6, 0.6).log().requires_grad_()
    ratio = token_ratio(new, vector(0.4, 0.5).log())  # 1.5 and 1.2
    clipped_surrogate(ratio, vector(1.0, 1.0), 0.2, 0.3).sum().backward()
    assert new.grad is not None
    assert close(new.grad, 0.0, 1.2)


def test_the_kl_estimate_is_0_for_equal_policies_and_positive_otherwise():
    new, reference = vector(0.5, 0.5, 0.5).log(), vector(0.5, 0.25, 1.0).log()
    # 0; ½ − 1 − log ½; 2 − 1 − log 2
    expected = (0.0, -0.5 + math.log(2), 1 - math.log(2))
    assert close(distance(new, reference), *expected)


def test_the_mean_of_the_kl_estimate_is_the_divergence():
    policy, reference = vector(0.5, 0.3, 0.2), vector(0.2, 0.2, 0.6)
    estimated = (policy * distance(policy.log(), reference.log())).sum()
    assert close(estimated, float((policy * (policy / reference).log()).sum()))


def test_a_value_beyond_the_clip_does_not_lower_the_loss():
    values, old, returns = vector(1.0, 0.1, 3.0), vector(0.0, 0.0, 0.0), vector(1.0, 1.0, 1.0)
    # ½·max(0, (0.2 − 1)²), ½·max(0.9², 0.9²), ½·max(2², 0.8²)
    assert close(value_loss(values, old, returns, 0.2), 0.32, 0.405, 2.0)


def test_the_loss_averages_over_tokens_or_over_samples():
    values = vector(1.0, 3.0, 8.0)
    assert close(average(values, ROWS, SIZES, "token", 3), 4.0)  # (1 + 3 + 8) / 3
    assert close(average(values, ROWS, SIZES, "sequence", 2), 5.0)  # (2 + 8) / 2


def test_an_average_does_not_depend_on_the_micro_batches():
    values = vector(1.0, 3.0, 8.0)
    first = average(values[:2], ROWS[:2], SIZES[:1], "sequence", 2)
    second = average(values[2:], ROWS[2:] - 1, SIZES[1:], "sequence", 2)
    assert close(first + second, 5.0)


def test_without_tokens_every_loss_is_0():
    none, rows = vector(), torch.zeros(0, dtype=torch.int64)
    assert sequence_ratio(none, none, rows, rows).shape == (0,)
    assert average(none, rows, rows, "sequence", 7).item() == 0


def test_very_different_probabilities_give_a_finite_gradient():
    new = vector(-0.1, -9999.0).requires_grad_()
    old = vector(-9999.0, -0.1)
    ratio = token_ratio(new, old)
    (clipped_surrogate(ratio, vector(1.0, -1.0), 0.2, 0.2) + distance(new, old)).sum().backward()
    assert ratio.isfinite().all() and new.grad is not None and new.grad.isfinite().all()
    assert log_ratio(new, old).abs().max() == 20


OLD = torch.tensor([0.3, 0.6, 0.2], dtype=torch.float64).log()
ADVANTAGES = torch.tensor([1.0, 1.0, -0.7], dtype=torch.float64)


@pytest.mark.parametrize("averaging", ["token", "sequence"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_gradient_of_the_policy_loss_matches_finite_differences(level, averaging):
    def loss(new: Tensor) -> Tensor:
        whole = sequence_ratio(new, OLD, ROWS, SIZES)
        ratio = whole if level == "sequence" else token_ratio(new, OLD)
        weight = truncated_weight(token_ratio(OLD, OLD - 0.3), 1.2)
        losses = -weight * clipped_surrogate(ratio, ADVANTAGES, 0.2, 0.3)
        losses = losses + 0.1 * distance(new, OLD + 0.2)
        return average(losses, ROWS, SIZES, averaging, 4)

    # One token within the clip range, one above it, one below it.
    new = vector(0.33, 0.9, 0.1).log().requires_grad_()
    assert torch.autograd.gradcheck(loss, (new,))


def test_the_gradient_of_the_critic_loss_matches_finite_differences():
    values = vector(0.3, 0.9, -0.5).requires_grad_()
    old, returns = vector(0.2, 0.2, 0.2), vector(1.0, 0.1, 0.4)
    assert torch.autograd.gradcheck(lambda given: value_loss(given, old, returns, 0.2), (values,))


def test_the_gradient_of_a_sequence_is_spread_evenly_over_its_tokens():
    new = vector(0.3, 0.6, 0.2).log().requires_grad_()
    ratio = sequence_ratio(new, OLD, ROWS, SIZES)
    average(clipped_surrogate(ratio, ADVANTAGES, 0.2, 0.2), ROWS, SIZES, "sequence", 2).backward()
    # ∇ = s_i · A_i · 1/|i| · ∇log π, over 2 samples; s = 1 here.
    assert new.grad is not None
    assert close(new.grad, 0.25, 0.25, -0.35)
