"""Mutation tests of the simulator: with a rule removed, it names the broken promise."""

import pytest
from worlds import plan_for

from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import Lineages
from plimsoll.ledger import accounts
from plimsoll.ledger.books import books, preconditions
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.rules import batching
from plimsoll.ledger.simulator.scenario import BrokenPromise
from plimsoll.ledger.simulator.training import Training

SEEDS = 600


def caught() -> str:
    """The message of the simulator, from the first seed that gives one."""
    for seed in range(SEEDS):
        try:
            Training(plan_for(seed)).run()
        except (BrokenPromise, AssertionError, LedgerError) as error:
            return str(error)
    return ""


def test_all_rules_together_break_no_promise():
    assert caught() == ""


def test_without_the_demand_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batching, "_excess", lambda *_: None)
    monkeypatch.setattr(accounts, "surplus", lambda *_: [])
    assert "cannot be consumed" in caught()  # the guard of the books alone keeps the promise


def test_without_the_demand_bound_and_the_guard(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batching, "_excess", lambda *_: None)
    monkeypatch.setattr(accounts, "surplus", lambda *_: [])
    monkeypatch.setattr(preconditions, "_may_consume", lambda *_: True)
    assert "is allowed" in caught()


def test_without_the_admission_bound(monkeypatch: pytest.MonkeyPatch):
    room = accounts.room
    monkeypatch.setattr(accounts, "room", lambda *about: room(*about) + 1)
    assert "groups are live" in caught()


def test_without_consuming_once(monkeypatch: pytest.MonkeyPatch):
    def committed(self: Books, event) -> None:
        for group in self.training:
            group.training = False
            self.queue.update(group)
        self._training.clear()
        self.version = event.version

    monkeypatch.setattr(Books, "_committed", committed)
    assert "was trained on twice" in caught()


def test_without_requeueing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Books, "requeue", lambda *_: None)
    assert "prompts were begun" in caught()


def test_without_the_check_for_abandoned_versions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Books, "_is_dead", lambda *_: False)
    assert "which is abandoned or unknown" in caught()


def test_without_the_check_for_rollouts_that_end_after_a_rollback(monkeypatch: pytest.MonkeyPatch):
    finished = Books._finished

    class Credulous(Lineages):
        def descends(self, *_) -> bool:
            return True

    def believing(self: Books, *about) -> None:
        lineages, self.lineages = self.lineages, Credulous()
        try:
            finished(self, *about)
        finally:
            self.lineages = lineages

    monkeypatch.setattr(Books, "_finished", believing)
    assert "which is abandoned or unknown" in caught()


def test_without_refusing_second_completions(monkeypatch: pytest.MonkeyPatch):
    for room in (books, preconditions):
        monkeypatch.setattr(room, "fits_member", lambda *_: True)
    assert "was written twice" in caught()


def test_without_undoing_later_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounts, "consumed_since", lambda *_: [])
    assert "the books have" in caught() or "lost" in caught()


def test_without_withholding_rollouts_that_turn_out_too_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounts.Accounts, "_withhold_overdue", lambda *_: None)
    monkeypatch.setattr(preconditions, "_may_consume", lambda *_: True)
    assert "is allowed" in caught()


def test_with_evaluations_that_count_as_live(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Books, "live", property(lambda self: len(self.groups) + len(self.evals)))
    assert "an evaluation used up room of training" in caught()
