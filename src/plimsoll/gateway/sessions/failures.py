"""Failures of the policy in a row, and the refusal once there are too many of them.

Some agents ask again after every failure, without an end. They are told to stop by a status that
no client asks again after.
"""

import time

from plimsoll.gateway.completions import Refusal

__all__ = ["PolicyFailures"]

MAX_IN_A_ROW = 10
"""In a row. Each stands for all that the upstream itself has tried."""
RETRY_SECONDS = 60.0
"""After that long the policy may be asked once more: a person may still be there to do so."""


class PolicyFailures:
    """Counts those of one session. Requests that failed together count as one."""

    def __init__(self) -> None:
        self.last = ""
        """Why the policy failed, if it did and has not answered since."""
        self._in_a_row = 0
        self._at = 0.0

    def add(self, message: str, asked: float) -> None:
        """A request that was made at the time `asked` came to nothing."""
        self.last = message
        if asked >= self._at:
            self._in_a_row += 1
            self._at = time.monotonic()

    def clear(self) -> None:
        """The policy has answered."""
        self.last = ""
        self._in_a_row = 0

    def check(self) -> None:
        """Raise the refusal for one more request, where it is of no use."""
        if self._in_a_row >= MAX_IN_A_ROW and time.monotonic() - self._at < RETRY_SECONDS:
            said = f"the policy has failed {self._in_a_row} times in a row; at last: {self.last}"
            raise Refusal("gave_up", said)
