"""The learning rate schedule."""

import pytest
from learner_parts import config

from plimsoll.core.errors import UsageError
from plimsoll.training.learner.optimizer import make_schedule


def shares(steps: int, **values: object) -> list[float]:
    schedule = make_schedule(config(**values), steps)
    return [schedule(step) for step in range(1, steps + 1)]


def test_a_constant_rate_does_not_change():
    assert shares(3) == [1, 1, 1]


def test_a_warmup_starts_above_0_and_reaches_the_full_rate():
    assert shares(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_a_linear_rate_falls_evenly_to_its_final_share():
    found = shares(5, schedule="linear", warmup_steps=1, final_rate=0.2)
    assert found == pytest.approx([1, 1, 0.8, 0.6, 0.4])


def test_a_cosine_rate_falls_slowly_at_first():
    found = shares(4, schedule="cosine", final_rate=0.0)
    assert found == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_no_step_has_a_rate_of_0_even_with_a_final_rate_of_0(shape: str, steps: int):
    assert min(shares(steps, schedule=shape, final_rate=0.0)) > 0


def test_a_step_past_the_last_has_a_positive_rate():
    assert make_schedule(config(schedule="linear", final_rate=0.0), 4)(9) > 0


def test_a_schedule_over_an_unknown_number_of_steps_is_refused():
    with pytest.raises(UsageError, match=r"\[run\] steps"):
        make_schedule(config(schedule="cosine"), None)


def test_a_warmup_as_long_as_the_run_is_refused():
    with pytest.raises(UsageError, match="never reach its value"):
        make_schedule(config(warmup_steps=5), 5)
