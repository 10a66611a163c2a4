"""The clock for groups that are waited for: those that are due and still run, and those without
which the last batches cannot be made."""

import math

from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.rules.admission import LastGroups
from plimsoll.ledger.rules.batching import Waiting
from plimsoll.ledger.rules.stragglers import Remedy, remedy_for

__all__ = ["StragglerClock"]


class StragglerClock:
    """Begins when a group is in the way of others, and is the same for all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[str, float] = {}
        self._last = LastGroups(seconds)

    @property
    def soonest(self) -> float:
        """When the next one is over."""
        return min(self._ends.values(), default=math.inf)

    def most(self, ledger: Ledger, steps: int, now: float) -> int:
        """How many groups more so many steps can use."""
        return self._last.most(ledger.books, ledger.accounts.settings, steps, now)

    async def attend(self, ledger: Ledger, now: float) -> None:
        """Have the ledger do what helps about every group that is due.

        A rollout goes on with newer weights by itself: workers ask the policy for every turn.
        Nobody asks whether it does, which is why the ledger has that happen so often only.
        """
        # Each remedy makes a group younger or gives it up, so there are not more than groups.
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
