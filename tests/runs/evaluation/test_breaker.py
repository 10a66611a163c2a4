"""The breaker and the canaries of an evaluation: stopped trials, void trials, restored trust."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from scripted_workers import HALF, ONE, Trial, evaluation, use_workers

from plimsoll.ledger.books.group import split_ticket
from plimsoll.runs.audit import audit
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.files import json_lines
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.tasks.task import Task
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Verdict, Void
from plimsoll.workers.messages import Order

MakeTasks = Callable[..., tuple[Task, ...]]
Plimsoll = Callable[..., CompletedProcess[str]]
EQUAL = BreakerLimits(expects_equal=True)


def is_canary(order: Order) -> bool:
    return order.ticket.startswith("canary-")


def scripted(verdict: Callable[[Order], Verdict]) -> Trial:
    async def trial(order: Order) -> Verdict:
        await asyncio.sleep(0)
        return verdict(order)

    return trial


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_a_trip_starts_no_trial_and_lets_running_ones_finish(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trial = scripted(lambda _: Void(Cause.TASK, "no curl"))
    run, workers = evaluation(
        *(monkeypatch, make_tasks("a"), trial, tmp_path / "run"),
        attempts=500,
        concurrency=4,
        limits=EQUAL,
    )
    await run.run()
    assert run.breaker.trip is not None
    assert 16 <= len(workers.orders) <= 16 + 4
    assert run.tally.trials == len(workers.orders)
    assert len(lines(tmp_path / "run/results.jsonl")) == len(workers.orders)


async def test_a_trip_withdraws_the_announced_trials_while_others_still_run(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    go = asyncio.Event()

    async def trial(order: Order) -> Verdict:
        if order.attempt == 1:
            await go.wait()
        return Void(Cause.TASK, "no curl")

    run, workers = evaluation(
        *(monkeypatch, make_tasks("a"), trial, tmp_path / "run"),
        attempts=500,
        concurrency=4,
        limits=EQUAL,
        pool="fresh",
    )
    running = asyncio.create_task(run.run())
    await until(lambda: run.breaker.trip is not None)
    assert any(workers.expected)
    await until(lambda: workers.expected[-1] == [])
    assert "a.1" in {one.label for one in run.running}
    go.set()
    await running
    assert workers.expected[-1] == []


async def test_a_tripped_run_shows_void_trials_that_await_a_retry(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trial = scripted(lambda _: Void(Cause.GRADER, "no curl"))
    run, workers = evaluation(
        *(monkeypatch, make_tasks("a"), trial, tmp_path / "run"),
        attempts=500,
        concurrency=4,
        limits=EQUAL,
    )
    await run.run()
    assert run.breaker.trip is not None
    assert run.tally.trials == len({split_ticket(order.ticket)[0] for order in workers.orders})
    assert {row.cause for row in run.tally.rows} == {Cause.GRADER}


async def test_keep_going_runs_to_the_end(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trial = scripted(lambda _: Void(Cause.TASK, "no curl"))
    run, workers = evaluation(
        *(monkeypatch, make_tasks("a"), trial, tmp_path / "run"),
        attempts=100,
        limits=BreakerLimits(stops=False),
    )
    await run.run()
    assert len(workers.orders) == 100
    assert run.breaker.trip is not None


@pytest.mark.parametrize("is_fixed", [True, False], ids=["after a fix", "with --keep-going"])
def test_an_eval_that_the_breaker_stopped_is_resumed_with_its_unfinished_trials(
    make_tasks: MakeTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plimsoll_here: Plimsoll,
    is_fixed: bool,
):
    make_tasks("a")
    out, broken = tmp_path / "run", Void(Cause.GRADER, "no curl")
    use_workers(monkeypatch, scripted(lambda _: broken), slots=6)
    words = ("tasks", "--attempts", "40", "--concurrency", "6", "--out", "run")
    stopped = plimsoll_here("eval", *words)
    assert stopped.returncode == 3, stopped.stderr
    assert "continue: plimsoll resume run" in stopped.stdout
    tried = [str(line["ticket"]) for line in lines(out / "results.jsonl")]
    final = {ticket.partition("/")[0] for ticket in tried if ticket.endswith(".1")}
    assert 0 < len(final) < len(tried) - len(final), "some trials await their retry"

    workers = use_workers(monkeypatch, scripted(lambda _: ONE if is_fixed else broken))
    resumed = plimsoll_here("resume", "run", "--json", *(() if is_fixed else ("--keep-going",)))

    assert resumed.returncode == 3, resumed.stderr  # some trials are void
    report = json.loads(resumed.stdout)
    assert report["trials"] == 40
    assert report["graded"] == (40 - len(final) if is_fixed else 0)
    assert ("breaker" in report) is not is_fixed
    groups = {split_ticket(order.ticket)[0] for order in workers.orders}
    assert len(groups) == 40 - len(final)
    assert not groups & final
    assert not {order.ticket for order in workers.orders} & set(tried)
    assert audit(out).problems == []


async def test_equal_rewards_stop_the_run_in_the_third_batch(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, workers = evaluation(
        *(monkeypatch, make_tasks("a", "b"), scripted(lambda _: HALF), tmp_path / "run"),
        attempts=500,
        concurrency=1,
        limits=BreakerLimits(),
    )
    await run.run()
    assert run.breaker.trip is not None
    assert (run.breaker.trip.rule, len(workers.orders)) == ("equal-rewards", 192)


async def test_canaries_run_between_trials_and_are_not_results(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trial = scripted(lambda order: ONE if is_canary(order) else HALF)
    canaries = Canaries.of(5, ["b"])
    run, workers = evaluation(
        *(monkeypatch, make_tasks("a", "b"), trial, tmp_path / "run"),
        attempts=10,
        concurrency=1,
        limits=EQUAL,
        canaries=canaries,
    )
    await run.run()
    indices = [index for index, order in enumerate(workers.orders) if is_canary(order)]
    assert indices == [5, 11, 17, 23]
    assert {(o.name, o.agent) for o in workers.orders if is_canary(o)} == {("b", "oracle")}
    assert (run.tally.trials, run.tally.mean_reward) == (20, 0.5)
    assert len(lines(tmp_path / "run/results.jsonl")) == 20
    kept = lines(tmp_path / "run/canaries.jsonl")
    assert [(row["task"], row["attempt"], row["agent"]) for row in kept] == [
        ("b", number, "oracle") for number in (1, 2, 3, 4)
    ]
    assert (canaries.good, canaries.failed, run.breaker.trip) == (4, 0, None)


async def test_a_failed_canary_voids_trials_since_the_last_good_one_and_stops_the_run(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def verdict(order: Order) -> Verdict:
        if is_canary(order):
            return ONE if order.attempt == 1 else Void(Cause.SANDBOX, "no space left")
        return Void(Cause.TASK, "CRLF") if order.name == "b" else HALF

    run, _ = evaluation(
        *(monkeypatch, make_tasks("a", "b"), scripted(verdict), tmp_path / "run"),
        attempts=50,
        concurrency=1,
        limits=EQUAL,
        canaries=Canaries.of(10, ["a"]),
    )
    await run.run()
    assert run.breaker.trip is not None
    assert run.breaker.trip.rule == "canary"
    assert run.tally.trials == 20
    rows = [row for row in run.tally.rows if row.task == "a"]
    assert [row.reward for row in rows] == [0.5] * 5 + [None] * 5
    for row in rows[5:]:
        assert (row.verdict, row.rewards, row.cause) == ("void", None, Cause.SANDBOX)
        assert row.reason == "canary failed after it: a: void: sandbox: no space left"
    # Trials that were void before keep their own reason.
    assert {row.reason for row in run.tally.rows if row.task == "b"} == {"CRLF"}
    kept = lines(tmp_path / "run/results.jsonl")
    assert len(kept) == 20 + 5
    last = {(line["task"], line["attempt"]): line for line in kept}
    assert sum(line["verdict"] == "graded" for line in last.values()) == 5


async def test_grades_that_a_failed_canary_revoked_stay_void_after_a_power_cut(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A power cut removes the lines of the results since their last sync. The ledger has grades
    that were entered before the canary failed."""
    out, synced = tmp_path / "run", [0]
    sync = RunDirectory.sync_results

    def watched_sync(directory: RunDirectory) -> None:
        synced.append(directory.results.stat().st_size)
        sync(directory)

    monkeypatch.setattr(RunDirectory, "sync_results", watched_sync)
    trial = scripted(lambda order: HALF if is_canary(order) else ONE)
    tasks = make_tasks("a")
    run, _ = evaluation(
        *(monkeypatch, tasks, trial, out),
        attempts=6,
        concurrency=1,
        limits=BreakerLimits(expects_equal=True),
        canaries=Canaries.of(5, ["a"]),
    )
    await run.run()
    assert [row.reward for row in run.tally.rows] == [None] * 5
    (out / "results.jsonl").write_bytes((out / "results.jsonl").read_bytes()[: synced[-1]])

    again, _ = evaluation(monkeypatch, tasks, trial, out, attempts=6, limits=EQUAL, resumes=True)
    await again.run()
    rewards = {row.attempt: row.reward for row in again.tally.rows}
    assert rewards == {1: None, 2: None, 3: None, 4: None, 5: None, 6: 1.0}


async def test_a_failed_canary_revokes_all_grades_in_one_write(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A kill between two writes would leave some of the grades."""
    writes: list[int] = []
    append = json_lines._append

    def watched(path: Path, data: bytes) -> None:
        if revoked := data.count(b"canary failed after it"):
            writes.append(revoked)
        append(path, data)

    monkeypatch.setattr(json_lines, "_append", watched)
    trial = scripted(lambda order: HALF if is_canary(order) else ONE)
    run, _ = evaluation(
        *(monkeypatch, make_tasks("a"), trial, tmp_path / "run"),
        attempts=6,
        concurrency=1,
        limits=EQUAL,
        canaries=Canaries.of(5, ["a"]),
    )
    await run.run()
    assert writes == [5]


async def test_trials_that_end_after_a_failed_canary_are_void(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failed = asyncio.Event()

    async def trial(order: Order) -> Verdict:
        if is_canary(order):
            failed.set()
            return HALF
        if order.attempt == 3:
            await failed.wait()
            await asyncio.sleep(0.01)
        return ONE

    run, _ = evaluation(
        *(monkeypatch, make_tasks("a"), trial, tmp_path / "run"),
        attempts=50,
        concurrency=2,
        limits=EQUAL,
        canaries=Canaries.of(5, ["a"]),
    )
    await run.run()
    by_attempt = {row.attempt: row for row in run.tally.rows}
    assert by_attempt[3].cause is Cause.GRADER
    assert by_attempt[3].reason == "canary failed after it: a: graded 0.5, not 1"
    assert run.tally.graded == 0


async def test_with_keep_going_a_good_canary_restores_trust(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trial = scripted(lambda o: HALF if is_canary(o) and o.attempt == 1 else ONE)
    run, workers = evaluation(
        *(monkeypatch, make_tasks("a"), trial, tmp_path / "run"),
        attempts=20,
        concurrency=1,
        limits=BreakerLimits(stops=False),
        canaries=Canaries.of(5, ["a"]),
    )
    await run.run()
    rewards = {row.attempt: row.reward for row in run.tally.rows}
    assert [rewards[attempt] for attempt in range(1, 6)] == [None] * 5, "before the canary"
    assert [rewards[attempt] for attempt in range(11, 21)] == [1.0] * 10, "after a passed canary"
    retried = {order.attempt for order in workers.orders if order.ticket.endswith(".1")}
    assert retried, "a trial before a failed canary is void with its cause, and retried"


async def test_a_task_solved_in_the_run_becomes_a_canary_if_it_has_a_solution(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tasks = make_tasks("lacks", "solved", "unsolved")
    for task in tasks[1:]:
        (task.path / "solution").mkdir()
        (task.path / "solution/solve.sh").write_text("true\n")
    trial = scripted(lambda order: HALF if order.name == "unsolved" else ONE)
    run, workers = evaluation(
        *(monkeypatch, tasks, trial, tmp_path / "run"),
        attempts=10,
        concurrency=1,
        limits=EQUAL,
        canaries=Canaries(4),
    )
    await run.run()
    assert {order.name for order in workers.orders if is_canary(order)} == {"solved"}
