"""Generalized advantages."""

import pytest
import torch

from plimsoll.training.learner.targets import generalized_advantages, whiten


def test_advantages_follow_the_formula():
    # γ = 0.9, λ = 0.5: δ = (0.9·0.4 − 0.2, 0.9·0.6 − 0.4, 1 − 0.6) = (0.16, 0.14, 0.4)
    # A_3 = 0.4; A_2 = 0.14 + 0.45·0.4 = 0.32; A_1 = 0.16 + 0.45·0.32 = 0.304
    found = generalized_advantages([0.2, 0.4, 0.6], 1.0, 0.9, 0.5)
    assert found == pytest.approx([0.304, 0.32, 0.4])


def test_with_lambda_1_each_advantage_is_the_reward_minus_the_value():
    found = generalized_advantages([0.2, 0.4, 0.6], 1.0, 1.0, 1.0)
    assert found == pytest.approx([0.8, 0.6, 0.4])


def test_with_lambda_0_each_advantage_is_its_own_td_error():
    found = generalized_advantages([0.2, 0.4, 0.6], 1.0, 1.0, 0.0)
    assert found == pytest.approx([0.2, 0.2, 0.4])


def test_without_tokens_there_are_no_advantages():
    assert generalized_advantages([], 1.0, 1.0, 1.0) == []


def test_whitened_values_have_mean_0_and_deviation_1():
    assert torch.allclose(whiten(torch.tensor([1.0, 3.0])), torch.tensor([-1.0, 1.0]))
    assert torch.equal(whiten(torch.tensor([2.0, 2.0])), torch.zeros(2))
