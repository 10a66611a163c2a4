"""Which cause an error has: the one place where exceptions become void verdicts."""

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
    """The verdict on a trial that ended in this error."""
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return Void(cause, " ".join(str(error).split()))
    return Void(Cause.BUG, f"{type(error).__name__}: {error}")
