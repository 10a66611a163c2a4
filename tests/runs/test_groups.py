"""Group statistics cover graded members only: a void one is not a zero."""

import pytest

from plimsoll.runs.batches import advantages, group_statistics


def test_a_void_member_does_not_bias_the_baseline_and_gets_no_advantage():
    rewards = [1.0, 1.0, None, 0.0]
    assert group_statistics(rewards).baseline == pytest.approx(2 / 3)
    first, second, of_void, last = advantages(rewards, by_std=False)
    assert of_void is None
    assert [first, second, last] == pytest.approx([0.333, 0.333, -0.667], abs=5e-4)


def test_a_zero_in_place_of_a_void_member_would_change_the_baseline():
    assert advantages([1.0, 1.0, 0.0, 0.0], by_std=False) == (0.5, 0.5, -0.5, -0.5)


def test_advantages_in_deviations_have_mean_0_and_deviation_1():
    made = advantages([1.0, 1.0, None, 0.0], by_std=True)
    numbers = [number for number in made if number is not None]
    assert sum(numbers) == pytest.approx(0.0, abs=1e-12)
    assert sum(number**2 for number in numbers) / 3 == pytest.approx(1.0, abs=1e-5)


def test_a_group_without_variance_is_flagged_and_has_zero_advantages():
    for rewards in ([0.0, 0.0, 0.0], [1.0, None, 1.0], [0.5]):
        assert group_statistics(rewards).zero_variance
        for by_std in (False, True):
            expected = tuple(None if reward is None else 0.0 for reward in rewards)
            assert advantages(rewards, by_std=by_std) == expected


def test_a_group_with_variance_is_not_flagged():
    assert not group_statistics([0.0, None, 0.1]).zero_variance


def test_a_group_without_a_graded_member_has_no_statistics():
    group = group_statistics([None, None])
    assert (group.graded, group.baseline, group.std, group.zero_variance) == (0, None, None, False)
    assert advantages([None, None], by_std=True) == (None, None)


def test_tiny_reward_differences_are_not_amplified():
    made = advantages([0.3, 0.1 + 0.2], by_std=True)
    assert all(abs(number or 0.0) < 1e-6 for number in made)
