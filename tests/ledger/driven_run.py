"""A run that a test drives step by step, with its events in memory."""

from plimsoll.core.endings import Ending
from plimsoll.core.versions import Version
from plimsoll.ledger.accounts import Accounts
from plimsoll.ledger.audit import disagreements
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.events import Segment
from plimsoll.ledger.rules.batching import Batch, Waiting
from plimsoll.ledger.settings import Settings
from plimsoll.ledger.simulator.training import Store
from plimsoll.testing.clocks import FakeClock
from plimsoll.trials.verdicts import Cause, Graded, Void

ORDER = DataOrder([f"task-{n}" for n in range(50)])


def settings(**changes) -> Settings:
    usual = {"batch_groups": 2, "max_running": 100, "depth": 1, "max_staleness": 2, "group_size": 1}
    return Settings(**{**usual, **changes})


class DrivenRun:
    """Accounts with a clock that the test controls."""

    def __init__(self, **changes) -> None:
        self.store = Store()
        self.clock = FakeClock()
        self.accounts = Accounts(Books(), self.store.put, self.store, self.clock)
        self.accounts.configure(settings(**changes))

    @property
    def books(self) -> Books:
        return self.accounts.books

    def admit(self) -> list[Group]:
        return self.accounts.admit(ORDER)

    def start_all(self) -> None:
        for ticket in self.accounts.waiting():
            assert self.accounts.start(ticket, "worker")

    def finish(self, ticket: str, *versions: Version, seconds: float = 1.0) -> bool:
        segments = [Segment(version, 10) for version in versions]
        return self.accounts.finish(ticket, Graded(1.0, Ending.SUBMITTED), seconds, segments)

    def void(self, ticket: str, cause: Cause = Cause.TASK) -> bool:
        return self.accounts.void(ticket, Void(cause, "as the test wants it"), 1.0)

    def choose(self) -> Batch:
        choice = self.accounts.choose()
        assert isinstance(choice, Batch), choice
        return choice

    def waits(self) -> Waiting:
        choice = self.accounts.choose()
        assert isinstance(choice, Waiting), choice
        return choice

    def step(self, *, leave: tuple[str, ...] = ()) -> Version:
        """Admit, finish all but some groups, train on a batch."""
        self.admit()
        self.start_all()
        for group in list(self.books.groups.values()):
            for index, member in enumerate(group.members):
                if group.id not in leave and not member.final:
                    self.finish(group.ticket(index))
        self.accounts.consume(self.choose())
        return self.accounts.commit()

    def reopen(self) -> None:
        """Reopen from the store alone, as after a kill of the process."""
        self.accounts = Accounts(self.store.books(), self.store.put, self.store, self.clock)

    def recover(self, at: Version, *, alive: bool = False) -> Version:
        return self.accounts.recover(at, lambda *_: alive)

    def is_sound(self) -> bool:
        wrong = [*disagreements(self.books), *self.store.auditor.broken]
        assert not wrong, wrong
        return True
