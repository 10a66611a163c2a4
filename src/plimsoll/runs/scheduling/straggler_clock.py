"""The clock for stragglers: measures their slack, and applies the ledger's remedies."""

import math

from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.rules.admission import LastGroups
from plimsoll.ledger.rules.batching import Waiting
from plimsoll.ledger.rules.stragglers import Remedy, remedy_for

__all__ = ["StragglerClock"]


class StragglerClock:
    """The slack of each straggler. It starts when the group blocks a batch; all have the same
    slack."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[str, float] = {}
        self._last = LastGroups(seconds)

    @property
    def soonest(self) -> float:
        """The time at which the next slack ends; infinity without a straggler."""
        return min(self._ends.values(), default=math.inf)

    def most(self, ledger: Ledger, steps: int, now: float) -> int:
        """The number of further groups that the remaining steps can use."""
        return self._last.most(ledger.books, ledger.accounts.settings, steps, now)

    async def attend(self, ledger: Ledger, now: float) -> None:
        """Apply the ledger's remedies to every group that is due.

        A resumed rollout continues with newer weights by itself: workers ask the policy for every
        turn. Nothing verifies that it does, so the ledger limits the number of resumes.
        """
        # Each remedy makes a group younger or gives it up, so the number of groups is a bound.
        for _ in range(1 + len(ledger.books.groups)):
            choice = ledger.choose()
            if not isinstance(choice, Waiting):
                self._ends.clear()
                return
            due = choice.due
            self._ends = {group: end for group, end in self._ends.items() if group in due}
            for group in due:
                end = self._ends.setdefault(group, now + self._seconds)
                late, has_slack = ledger.books.groups[group], now < end
                rules, upto = ledger.accounts.settings, choice.upto
                remedy = remedy_for(late, rules, upto, slack_left=has_slack, can_resume=True)
                if remedy is not Remedy.WAIT:
                    await ledger.attend(group, slack_left=has_slack, can_resume=True)
                    break
            else:
                return
