"""The endings of an agent's work. They say nothing about the reward."""

from enum import StrEnum

__all__ = ["Ending"]


class Ending(StrEnum):
    """The endings after which a trial is graded."""

    SUBMITTED = "submitted"
    BUDGET = "budget"
    """Out of time, turns or context."""
    REFUSED = "refused"
