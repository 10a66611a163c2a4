"""Void verdicts of exceptions: the one place that maps an exception to a cause."""

from plimsoll.core.errors import (
    AgentError,
    PlimsollError,
    PolicyError,
    SandboxError,
    SetUpError,
    SolutionError,
    TaskError,
    TrajectoryError,
)
from plimsoll.trials.verdicts import Cause, Void

__all__ = ["void_of"]

_CAUSES: tuple[tuple[type[PlimsollError], Cause], ...] = (
    (SolutionError, Cause.TASK),
    (TaskError, Cause.TASK),
    (SandboxError, Cause.SANDBOX),
    (SetUpError, Cause.SANDBOX),
    (AgentError, Cause.SANDBOX),
    (PolicyError, Cause.POLICY),
    (TrajectoryError, Cause.SANDBOX),
)


def void_of(error: PlimsollError) -> Void:
    """Return the verdict on a trial that ended with this error."""
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return Void(cause, " ".join(str(error).split()))
    return Void(Cause.BUG, f"{type(error).__name__}: {error}")
