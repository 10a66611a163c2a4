"""The breaker woven into the controller: what stops, what goes on, what becomes void."""

import asyncio
import json
from collections.abc import Callable

from plimsoll.core.endings import Ending
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.policy import Policy
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation.eval_loop import Evaluation
from plimsoll.runs.tickets import Ticket
from plimsoll.tasks.task import Task
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void

OnPhase = Callable[[str], None]
MakeTasks = Callable[..., tuple[Task, ...]]
ONE = Graded(1.0, Ending.SUBMITTED, {"reward": 1.0})
HALF = Graded(0.5, Ending.SUBMITTED, {"reward": 0.5})


def result(ticket: Ticket, verdict: Verdict) -> TrialResult:
    return TrialResult(ticket.task.name, ticket.attempt, verdict, 0.0, {})


class World:
    """Says what comes of each ticket, and remembers them."""

    def __init__(self, verdict: Callable[[Ticket], Verdict]) -> None:
        self.tickets: list[Ticket] = []
        self._verdict = verdict

    async def trial(self, ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        on_phase("agent")
        self.tickets.append(ticket)
        await asyncio.sleep(0)
        return result(ticket, self._verdict(ticket))


def evaluation(
    tasks: tuple[Task, ...],
    world: World,
    directory: RunDirectory,
    *,
    attempts: int = 10,
    concurrency: int = 1,
    policy: Policy | None = None,
    canaries: Canaries | None = None,
) -> Evaluation:
    return Evaluation(
        tasks,
        attempts=attempts,
        concurrency=concurrency,
        trial=world.trial,
        directory=directory,
        breaker=Breaker(policy or Policy(expects_equal=True)),
        canaries=canaries,
    )


async def test_a_trip_starts_nothing_more_and_keeps_what_runs(
    make_tasks: MakeTasks, directory: RunDirectory
):
    world = World(lambda _: Void(Cause.GRADER, "no curl"))
    run = evaluation(make_tasks("a"), world, directory, attempts=500, concurrency=4)
    await run.run()
    assert run.breaker.trip is not None
    assert 16 <= len(world.tickets) <= 16 + 4
    assert run.tally.trials == len(world.tickets)
    assert len(directory.results.read_text().splitlines()) == len(world.tickets)


async def test_told_to_keep_going_it_runs_to_its_end(
    make_tasks: MakeTasks, directory: RunDirectory
):
    world = World(lambda _: Void(Cause.GRADER, "no curl"))
    policy = Policy(stops=False)
    run = evaluation(make_tasks("a"), world, directory, attempts=100, policy=policy)
    await run.run()
    assert len(world.tickets) == 100
    assert run.breaker.trip is not None


async def test_an_agent_that_gets_the_same_everywhere_is_stopped_in_the_third_batch(
    make_tasks: MakeTasks, directory: RunDirectory
):
    world = World(lambda _: HALF)
    run = evaluation(make_tasks("a", "b"), world, directory, attempts=500, policy=Policy())
    await run.run()
    assert run.breaker.trip is not None
    assert (run.breaker.trip.rule, len(world.tickets)) == ("equal-rewards", 192)


async def test_canaries_are_woven_in_and_are_no_results(
    make_tasks: MakeTasks, directory: RunDirectory
):
    world = World(lambda ticket: ONE if ticket.canary else HALF)
    canaries = Canaries.of(5, ["b"])
    run = evaluation(make_tasks("a", "b"), world, directory, canaries=canaries)
    await run.run()
    places = [index for index, ticket in enumerate(world.tickets) if ticket.canary]
    assert places == [5, 11, 17, 23]
    assert {(t.task.name, t.agent) for t in world.tickets if t.canary} == {("b", "oracle")}
    assert (run.tally.trials, run.summary.mean_reward) == (20, 0.5)
    assert len(directory.results.read_text().splitlines()) == 20
    kept = [json.loads(line) for line in directory.canaries.read_text().splitlines()]
    assert [(row["task"], row["attempt"], row["agent"]) for row in kept] == [
        ("b", number, "oracle") for number in (1, 2, 3, 4)
    ]
    assert (canaries.good, canaries.failed, run.breaker.trip) == (4, 0, None)


async def test_a_failed_canary_voids_what_came_after_the_last_good_one_and_stops(
    make_tasks: MakeTasks, directory: RunDirectory
):
    def verdict(ticket: Ticket) -> Verdict:
        if ticket.canary:
            return ONE if ticket.attempt == 1 else Void(Cause.SANDBOX, "no space left")
        return Void(Cause.TASK, "CRLF") if ticket.task.name == "b" else HALF

    world = World(verdict)
    run = evaluation(
        make_tasks("a", "b"), world, directory, attempts=50, canaries=Canaries.of(10, ["a"])
    )
    await run.run()
    assert run.breaker.trip is not None
    assert run.breaker.trip.rule == "canary"
    assert run.tally.trials == 20
    rows = [row for row in run.summary.results if row.task == "a"]
    assert [row.reward for row in rows] == [0.5] * 5 + [None] * 5
    for row in rows[5:]:
        assert (row.verdict, row.rewards, row.cause) == ("void", None, Cause.SANDBOX)
        assert row.reason == "canary failed after it: a: void: sandbox: no space left"
    # What was void before keeps its own reason.
    assert {row.reason for row in run.summary.results if row.task == "b"} == {"CRLF"}
    lines = [json.loads(line) for line in directory.results.read_text().splitlines()]
    assert len(lines) == 20 + 5
    last = {(line["task"], line["attempt"]): line for line in lines}
    assert sum(line["verdict"] == "graded" for line in last.values()) == 5


async def test_trials_that_end_after_a_failed_canary_are_void_as_well(
    make_tasks: MakeTasks, directory: RunDirectory
):
    failed = asyncio.Event()

    async def trial(ticket: Ticket, on_phase: OnPhase) -> TrialResult:
        if ticket.canary:
            failed.set()
            return result(ticket, HALF)
        if ticket.attempt == 3:
            await failed.wait()
            await asyncio.sleep(0.01)
        return result(ticket, ONE)

    run = Evaluation(
        make_tasks("a"),
        attempts=50,
        concurrency=2,
        trial=trial,
        directory=directory,
        breaker=Breaker(Policy(expects_equal=True)),
        canaries=Canaries.of(5, ["a"]),
    )
    await run.run()
    by_attempt = {row.attempt: row for row in run.tally.rows}
    assert by_attempt[3].cause is Cause.GRADER
    assert by_attempt[3].reason == "canary failed after it: a: graded 0.5, not 1"
    assert run.summary.graded == 0


async def test_kept_going_a_good_canary_restores_trust(
    make_tasks: MakeTasks, directory: RunDirectory
):
    world = World(lambda t: HALF if t.canary and t.attempt == 1 else ONE)
    run = evaluation(
        make_tasks("a"),
        world,
        directory,
        attempts=20,
        policy=Policy(stops=False),
        canaries=Canaries.of(5, ["a"]),
    )
    await run.run()
    assert [row.reward for row in run.tally.rows] == [None] * 10 + [1.0] * 10


async def test_a_task_solved_in_the_run_becomes_a_canary_if_it_has_a_solution(
    make_tasks: MakeTasks, directory: RunDirectory
):
    tasks = make_tasks("lacks", "solved", "unsolved")
    for task in tasks[1:]:
        (task.path / "solution").mkdir()
        (task.path / "solution/solve.sh").write_text("true\n")
    world = World(lambda ticket: HALF if ticket.task.name == "unsolved" else ONE)
    run = evaluation(tasks, world, directory, canaries=Canaries(4))
    await run.run()
    assert {ticket.task.name for ticket in world.tickets if ticket.canary} == {"solved"}


async def test_several_agents_take_turns_at_each_task(
    make_tasks: MakeTasks, directory: RunDirectory
):
    world = World(lambda _: ONE)
    run = Evaluation(
        make_tasks("a", "b"),
        attempts=2,
        concurrency=1,
        trial=world.trial,
        directory=directory,
        agents=("oracle", "nop"),
    )
    await run.run()
    assert run.total == 8
    assert [ticket.label for ticket in world.tickets] == [
        f"{task}.{agent}.{attempt}"
        for attempt in (1, 2)
        for task in ("a", "b")
        for agent in ("oracle", "nop")
    ]
    assert len({ticket.folder(directory) for ticket in world.tickets}) == 8
