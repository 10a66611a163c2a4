"""How an agent's work came to its end, apart from what it was worth."""

from enum import StrEnum

__all__ = ["Ending"]


class Ending(StrEnum):
    """The ways an agent can end and still be graded."""

    SUBMITTED = "submitted"
    BUDGET = "budget"
    """Out of time, turns or context."""
    REFUSED = "refused"
