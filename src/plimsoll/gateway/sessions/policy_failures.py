"""Consecutive failures of the policy, and the refusal after too many of them.

Some agents retry forever. After `MAX_IN_A_ROW` failures they get a status that clients do not
retry.
"""

import time

from plimsoll.gateway.completions import Refusal

__all__ = ["PolicyFailures"]

MAX_IN_A_ROW = 10
"""Each failure stands for all retries of the upstream itself."""
RETRY_SECONDS = 60.0
"""After this time, one more request is let through: a person may have fixed the policy."""


class PolicyFailures:
    """Counts the consecutive failures of one session. Requests that failed together count once."""

    def __init__(self) -> None:
        self.last = ""
        """The last failure; empty once the policy has answered."""
        self._in_a_row = 0
        self._last_time = 0.0

    def add(self, message: str, sent_at: float) -> None:
        """Count the failure of a request that was sent at the time `sent_at`."""
        self.last = message
        if sent_at >= self._last_time:
            self._in_a_row += 1
            self._last_time = time.monotonic()

    def clear(self) -> None:
        """Reset the count: the policy has answered."""
        self.last = ""
        self._in_a_row = 0

    def check(self) -> None:
        """Raise the refusal for another request, if the policy has failed too often."""
        if self._in_a_row >= MAX_IN_A_ROW and time.monotonic() - self._last_time < RETRY_SECONDS:
            message = (
                f"the policy has failed {self._in_a_row} times in a row; the last time: {self.last}"
            )
            raise Refusal("gave_up", message)
