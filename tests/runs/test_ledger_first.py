"""The ledger comes first: the start of a trial is written before a worker gets it, and its end
before the run forgets it."""

import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
from rollout_runs import MakeConfig, MakeTasks, all_batches, check_audit
from scripted_workers import ONE, ScriptedWorkers, evaluation

from plimsoll.ledger.events import Event, Finished, Started, Voided
from plimsoll.ledger.journal.journal import Journal
from plimsoll.runs import session
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.session import RunSession
from plimsoll.trials.verdicts import Cause, Verdict, Void
from plimsoll.workers.messages import Order

LONGEST_WRITE = 0.05


class SlowJournal:
    """Delays the writes of these events until the run has gone on, or for a while.

    `early` has the tickets whose run has gone on, as told by `is_early`.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        kinds: tuple[type[Started | Finished | Voided], ...],
        is_early: Callable[[str], bool],
    ) -> None:
        self.tickets: list[str] = []
        self.early: list[str] = []
        append = Journal.append

        def slow(journal: Journal, events: Iterable[tuple[Event, str]]) -> int:
            entries = list(events)
            for event, _ in entries:
                if isinstance(event, kinds):
                    self.tickets.append(event.ticket)
                    end = time.monotonic() + LONGEST_WRITE
                    while not is_early(event.ticket) and time.monotonic() < end:
                        time.sleep(0.005)
                    if is_early(event.ticket):
                        self.early.append(event.ticket)
            return append(journal, entries)

        monkeypatch.setattr(Journal, "append", slow)


async def trial(order: Order) -> Verdict:
    """Graded. The first trials of the task `unlucky` are void."""
    is_lost = order.name == "unlucky" and order.ticket.endswith(".0")
    return Void(Cause.SANDBOX, "no space") if is_lost else ONE


Run = tuple[RunSession, ScriptedWorkers, Callable[[], Awaitable[object]]]


@pytest.fixture(params=["evaluation", "training"])
def run(
    request: pytest.FixtureRequest,
    make_tasks: MakeTasks,
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """A run of six trials, its workers, and the function that runs it."""
    out = tmp_path / "run"
    if request.param == "evaluation":
        made, workers = evaluation(
            monkeypatch, make_tasks("a", "unlucky"), trial, out, attempts=2, concurrency=3
        )
        return made, workers, made.run
    rollouts = Rollouts(make_config("a", "unlucky", steps=1), out=out)
    workers = ScriptedWorkers(trial, 3)
    monkeypatch.setattr(session, "make_workers", lambda *_, **__: workers)

    async def roll_out() -> None:
        async with rollouts:
            await all_batches(rollouts)

    return rollouts, workers, roll_out


async def test_the_start_of_a_trial_is_in_the_ledger_before_a_worker_gets_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, workers, run_to_end = run

    def is_sent(ticket: str) -> bool:
        return any(order.ticket == ticket for order in workers.orders)

    slow = SlowJournal(monkeypatch, (Started,), is_sent)
    await run_to_end()
    assert slow.early == []
    assert sorted(slow.tickets) == sorted(order.ticket for order in workers.orders)
    assert len(slow.tickets) == 6
    check_audit(tmp_path / "run")


async def test_the_end_of_a_trial_is_in_the_ledger_before_the_run_forgets_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made, workers, run_to_end = run

    def is_forgotten(ticket: str) -> bool:
        return ticket not in made._scheduler.orders

    slow = SlowJournal(monkeypatch, (Finished, Voided), is_forgotten)
    await run_to_end()
    assert slow.early == []
    assert sorted(slow.tickets) == sorted(order.ticket for order in workers.orders)
    assert len(slow.tickets) == 6
    check_audit(tmp_path / "run")
