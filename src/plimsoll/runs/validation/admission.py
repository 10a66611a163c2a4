"""Admission: decides before a run which tasks may run, by their validation on its backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.core.errors import UsageError

__all__ = ["AdmissionPolicy", "AdmittedTasks", "ValidationState", "ValidationStatus", "admit"]

SHOWN = 10


class ValidationState(StrEnum):
    """The state of a task's validation on one backend, for the current content of the task."""

    VALID = "valid"
    UNKNOWN = "never validated"
    CHANGED = "changed since it was validated"
    OTHER_ASSETS = "validated with other assets, or with none"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class ValidationStatus:
    """The validation state of a task, with details such as the reason for its quarantine."""

    state: ValidationState
    reason: str = ""

    @property
    def description(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state.value


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """The validation that a run requires of its tasks."""

    require_validation: bool
    allowed_share: float = 0.0
    """The largest share of tasks that may run without validation."""
    skip_quarantined: bool = False
    """Leave quarantined tasks out instead of refusing to start."""


@dataclass(frozen=True, slots=True)
class AdmittedTasks:
    """The names of the tasks that run, and the reasons for those left out."""

    tasks: frozenset[str]
    left_out: dict[str, str]


def admit(
    statuses: Mapping[str, ValidationStatus],
    policy: AdmissionPolicy,
    *,
    backend: str,
    validate: str,
) -> AdmittedTasks:
    """Decide by the status of each task, by name. Raises `UsageError` if the run may not start.

    `validate` is the command to suggest.
    """
    left_out = {
        name: status.description
        for name, status in statuses.items()
        if policy.skip_quarantined and status.state is ValidationState.QUARANTINED
    }
    rest = {name: status for name, status in statuses.items() if name not in left_out}
    if not rest:
        raise UsageError(
            f"nothing was run: all {len(left_out):,} tasks are quarantined on {backend}\n"
            + _listed(left_out)
        )
    doubtful = {n: s.description for n, s in rest.items() if s.state is not ValidationState.VALID}
    if policy.require_validation and len(doubtful) > policy.allowed_share * len(rest):
        quarantined = any(s.state is ValidationState.QUARANTINED for s in rest.values())
        raise UsageError(
            f"nothing was run: {len(doubtful):,} of {len(rest):,} tasks are not validated on the "
            f"backend {backend} (limit {policy.allowed_share:.0%})\n"
            + _listed(doubtful)
            + f"\nvalidate them: {validate}"
            + ("\nor leave the quarantined out: --skip-quarantined" if quarantined else "")
        )
    return AdmittedTasks(frozenset(rest), left_out)


def _listed(tasks: Mapping[str, str]) -> str:
    lines = [f"  {name}: {description}" for name, description in list(tasks.items())[:SHOWN]]
    if len(tasks) > SHOWN:
        lines.append(f"  and {len(tasks) - SHOWN:,} more")
    return "\n".join(lines)
