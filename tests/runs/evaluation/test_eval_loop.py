"""The controller: order, bound, boundary, cancellation. Its trials here are plain coroutines."""

import asyncio
from collections.abc import Callable

import pytest

from plimsoll.core.endings import Ending
from plimsoll.core.errors import UsageError
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.policy import Policy
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation.eval_loop import Evaluation, Trial
from plimsoll.runs.tickets import Hints, Ticket
from plimsoll.tasks.task import Task
from plimsoll.testing.waiting import until
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import Cause, Graded

OnPhase = Callable[[str], None]
MakeTasks = Callable[..., tuple[Task, ...]]


def one(ticket: Ticket) -> TrialResult:
    verdict = Graded(1.0, Ending.SUBMITTED, {"reward": 1.0})
    return TrialResult(ticket.task.name, ticket.attempt, verdict, 0.0, {})


def evaluation(
    tasks: tuple[Task, ...],
    trial: Trial,
    directory: RunDirectory,
    *,
    attempts: int = 1,
    concurrency: int = 2,
    hints: Hints | None = None,
) -> Evaluation:
    return Evaluation(
        tasks,
        attempts=attempts,
        concurrency=concurrency,
        trial=trial,
        directory=directory,
        breaker=Breaker(Policy(stops=False)),
        hints=hints,
    )


async def test_each_task_is_tried_once_before_any_is_tried_again(
    make_tasks: MakeTasks, directory: RunDirectory
):
    order: list[tuple[int, str]] = []

    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        order.append((ticket.attempt, ticket.task.name))
        return one(ticket)

    await evaluation(make_tasks("a", "b", "c"), trial, directory, attempts=2).run()
    assert order == [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")]


async def test_no_more_run_at_once_than_allowed_and_no_fewer(
    make_tasks: MakeTasks, directory: RunDirectory
):
    seen: list[int] = []

    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        seen.append(len(run.running))
        await asyncio.sleep(0.01)
        return one(ticket)

    run = evaluation(make_tasks("a", "b", "c"), trial, directory, attempts=4, concurrency=3)
    await run.run()
    assert max(seen) == 3
    assert run.running == {}
    assert run.summary.trials == 12


async def test_a_trial_that_raises_is_a_void_of_its_own_and_the_run_goes_on(
    make_tasks: MakeTasks, directory: RunDirectory
):
    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        on_phase("agent")
        if ticket.task.name == "b":
            raise KeyError("nobody thought of this")
        return one(ticket)

    run = evaluation(make_tasks("a", "b", "c"), trial, directory)
    await run.run()
    assert run.summary.graded == 2
    (row,) = (row for row in run.summary.results if row.cause)
    assert (row.task, row.cause) == ("b", Cause.BUG)
    assert row.reason == "KeyError in phase agent: 'nobody thought of this'"
    assert "Traceback" in (directory.trial("b", 1) / "bug.txt").read_text()


async def test_cancelled_it_waits_for_clean_up_and_keeps_what_finished(
    make_tasks: MakeTasks, directory: RunDirectory
):
    cleaned: list[str] = []

    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        if ticket.task.name == "a":
            return one(ticket)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(ticket.task.name)
        return one(ticket)

    run = evaluation(make_tasks("a", "b", "c", "d"), trial, directory, concurrency=2)
    running = asyncio.create_task(run.run())
    await until(lambda: {each.ticket.task.name for each in run.running.values()} == {"b", "c"})
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(cleaned) == ["b", "c"]
    assert [row.task for row in run.summary.results] == ["a"]
    assert len(directory.results.read_text().splitlines()) == 1


async def test_results_that_cannot_be_kept_end_the_run_with_one_error(
    make_tasks: MakeTasks, directory: RunDirectory
):
    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        await asyncio.sleep(0)
        return one(ticket)

    directory.results.unlink()
    directory.results.mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        await evaluation(make_tasks("a", "b", "c"), trial, directory).run()


class Told:
    """Keeps what it is told of coming tickets."""

    def __init__(self) -> None:
        self.coming_now: list[str] = []
        self.most = 0
        self.said: list[str] = []

    def coming(self, ticket: Ticket) -> None:
        self.said.append(ticket.label)
        self.coming_now.append(ticket.label)
        self.most = max(self.most, len(self.coming_now))

    def over(self, ticket: Ticket) -> None:
        self.coming_now.remove(ticket.label)


async def test_each_ticket_is_hinted_at_before_its_trial_and_is_over_once(
    make_tasks: MakeTasks, directory: RunDirectory
):
    told = Told()

    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        assert ticket.label in told.said
        await asyncio.sleep(0)
        return one(ticket)

    tasks = make_tasks("a", "b", "c")
    await evaluation(tasks, trial, directory, attempts=3, concurrency=2, hints=told).run()
    assert told.said == [f"{name}.{attempt}" for attempt in (1, 2, 3) for name in "abc"]
    assert told.coming_now == []
    # Two that run, and the next two.
    assert told.most == 4


async def test_when_it_is_cancelled_every_hint_is_taken_back(
    make_tasks: MakeTasks, directory: RunDirectory
):
    told = Told()

    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        await asyncio.sleep(60)
        return one(ticket)

    run = evaluation(make_tasks("a", "b"), trial, directory, attempts=4, hints=told)
    running = asyncio.create_task(run.run())
    await until(lambda: told.coming_now)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told.coming_now == []
