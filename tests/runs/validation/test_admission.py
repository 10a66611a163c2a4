"""Admission of tasks: validated ones; others only if the policy permits it."""

import pytest

from plimsoll.core.errors import UsageError
from plimsoll.runs.validation.admission import (
    AdmissionPolicy,
    AdmittedTasks,
    ValidationState,
    ValidationStatus,
    admit,
)

VALID = ValidationStatus(ValidationState.VALID)
NEVER = ValidationStatus(ValidationState.UNKNOWN)
CHANGED = ValidationStatus(ValidationState.CHANGED, "2031-01-01")
BAD = ValidationStatus(ValidationState.QUARANTINED, "nop is graded 1")
STRICT = AdmissionPolicy(require_validation=True)


def decide(policy: AdmissionPolicy, *statuses: ValidationStatus) -> AdmittedTasks:
    named = {f"t{number}": status for number, status in enumerate(statuses)}
    return admit(named, policy, backend="local", validate="plimsoll validate tasks --backend local")


def test_validated_tasks_run():
    assert decide(STRICT, VALID, VALID).tasks == {"t0", "t1"}


@pytest.mark.parametrize("doubtful", [NEVER, CHANGED, BAD])
def test_a_single_unvalidated_task_is_rejected(doubtful: ValidationStatus):
    with pytest.raises(UsageError) as caught:
        decide(STRICT, VALID, VALID, doubtful)
    message = str(caught.value)
    assert message.startswith(
        "nothing was run: 1 of 3 tasks are not validated on the backend local"
    )
    assert f"  t2: {doubtful.description}" in message
    assert "plimsoll validate tasks --backend local" in message
    assert ("--skip-quarantined" in message) is (doubtful is BAD)


def test_an_allowed_share_of_unvalidated_tasks_may_run():
    half = AdmissionPolicy(require_validation=True, allowed_share=0.5)
    assert len(decide(half, VALID, NEVER).tasks) == 2
    with pytest.raises(UsageError, match=r"2 of 3 .*limit 50%"):
        decide(half, VALID, NEVER, CHANGED)


def test_unvalidated_tasks_run_if_validation_is_not_required():
    assert len(decide(AdmissionPolicy(require_validation=False), NEVER, BAD).tasks) == 2


def test_quarantined_tasks_are_left_out_on_request_and_named():
    policy = AdmissionPolicy(require_validation=True, skip_quarantined=True)
    admitted = decide(policy, VALID, BAD)
    assert admitted.tasks == {"t0"}
    assert admitted.left_out == {"t1": "quarantined: nop is graded 1"}
    with pytest.raises(UsageError, match="1 of 1 tasks are not validated"):
        decide(policy, NEVER, BAD)


def test_a_fully_quarantined_set_does_not_run():
    with pytest.raises(UsageError, match="all 2 tasks are quarantined on local"):
        decide(AdmissionPolicy(require_validation=False, skip_quarantined=True), BAD, BAD)


def test_a_long_list_of_tasks_is_cut_and_counted():
    with pytest.raises(UsageError) as caught:
        decide(STRICT, *[NEVER] * 1000)
    assert "  and 990 more" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 16
