"""An evaluation on the scheduler: placement, order, bound, retries, cancellation, resumption."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import pytest
from rollout_runs import rows
from scripted_workers import ONE, evaluation, use_workers

from plimsoll.config.file import Config
from plimsoll.core.errors import LedgerError, UsageError, WorkerError
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.audit import audit
from plimsoll.runs.evaluation.eval_run import EvalRequest, EvalRun
from plimsoll.runs.evaluation.trial_run import TrialSetRequest, TrialSetRun
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.validation.validate_run import ValidateRequest, ValidateRun
from plimsoll.sandboxes.docker.compose import compose_command
from plimsoll.tasks.task import Task
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Verdict, Void
from plimsoll.workers.messages import Order

MakeTasks = Callable[..., tuple[Task, ...]]
Plimsoll = Callable[..., CompletedProcess[str]]


async def graded(order: Order) -> Verdict:
    await asyncio.sleep(0)
    return ONE


@pytest.mark.parametrize(
    ("workers", "engine", "number", "each"),
    [
        (None, None, 1, 5),
        (1, None, 1, 5),
        (2, None, 2, 3),
        (2, "process", 2, 3),
        (8, None, 8, 1),
        (None, "ray", 1, 5),
        (2, "ray", 2, 3),
    ],
)
def test_the_concurrency_is_shared_by_the_requested_workers(workers, engine, number, each):
    request = TrialSetRequest(
        path=Path("tasks"),
        backend="local",
        concurrency=5,
        pattern=None,
        out=None,
        config=None,
        workers=workers,
        engine=engine,
    )
    made = request.applied_to(Config(), agent="oracle").workers
    assert (made.number, made.concurrency, made.engine) == (number, each, engine or "process")
    # Without either option there are no worker processes.
    assert request.in_process is (workers is None and engine is None)


def prepared(command: str, **placement: object) -> TrialSetRun:
    """An evaluation or a validation of `tasks`, as its command makes it."""
    options = {"path": Path("tasks"), "concurrency": 5, "pattern": None, "out": None}
    options |= {"config": None, **placement}
    if command == "validate":
        return ValidateRun.prepare(ValidateRequest(**options, backend="docker", repeat=1))
    made = EvalRequest(**options, backend="docker", agent="nop", attempts=2, skip_invalid=False)
    return EvalRun.prepare(made)


@pytest.mark.parametrize("command", ["eval", "validate"])
def test_options_of_workers_reach_the_run_and_its_bound_stays_the_concurrency(
    command: str, make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_tasks("a")
    monkeypatch.chdir(tmp_path)
    run = prepared(command, workers=2, engine="process")
    workers = run.plan.config.workers
    assert (workers.number, workers.concurrency, workers.engine) == (2, 3, "process")
    assert run.plan.settings.max_running == 5


@pytest.mark.parametrize("command", ["eval", "validate"])
def test_workers_on_other_hosts_get_absolute_paths_and_need_no_compose_here(
    command: str, make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_tasks("a")
    (tmp_path / "tasks/a/environment").mkdir()
    compose = tmp_path / "tasks/a/environment/docker-compose.yaml"
    compose.write_text("services: {main: {image: debian:12}}\n")
    monkeypatch.setattr(compose_command, "_candidates", lambda *_: iter(()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="Docker Compose V2"):
        prepared(command, workers=2)
    run = prepared(command, workers=2, engine="ray")
    assert [group.task.path for group in run.trials.groups] == [tmp_path / "tasks/a"] * 2


async def test_each_task_is_tried_once_before_any_is_tried_again(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, workers = evaluation(
        monkeypatch, make_tasks("a", "b", "c"), graded, tmp_path / "run", attempts=2, concurrency=1
    )
    await run.run()
    assert [(order.attempt, order.name) for order in workers.orders] == [
        (attempt, name) for attempt in (1, 2) for name in "abc"
    ]
    assert {Path(order.folder).name for order in workers.orders} == {
        f"{name}.{attempt}" for attempt in (1, 2) for name in "abc"
    }


async def test_several_agents_take_turns_at_each_task(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, workers = evaluation(
        *(monkeypatch, make_tasks("a", "b"), graded, tmp_path / "run"),
        attempts=2,
        concurrency=1,
        agents=("oracle", "nop"),
    )
    await run.run()
    assert [Path(order.folder).name for order in workers.orders] == [
        f"{task}.{agent}.{attempt}"
        for attempt in (1, 2)
        for task in ("a", "b")
        for agent in ("oracle", "nop")
    ]


async def test_all_slots_are_used_and_never_exceeded(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def trial(order: Order) -> Verdict:
        await asyncio.sleep(0.01)
        return ONE

    run, workers = evaluation(
        monkeypatch, make_tasks("a", "b", "c"), trial, tmp_path / "run", attempts=4, concurrency=3
    )
    await run.run()
    assert workers.most == 3
    assert run.running == []
    assert run.tally.trials == 12


async def test_a_void_trial_is_retried_by_the_table_of_causes_and_its_last_try_is_its_result(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def trial(order: Order) -> Verdict:
        match order.name:
            case "recovers":
                return ONE if order.ticket.endswith(".2") else Void(Cause.SANDBOX, "no space")
            case "lost":
                return Void(Cause.LOST, "its worker is gone")
            case _:
                return Void(Cause.TASK, "CRLF")

    tasks = make_tasks("recovers", "lost", "broken")
    run, workers = evaluation(monkeypatch, tasks, trial, tmp_path / "run")
    await run.run()
    tries = [order.name for order in workers.orders]
    assert {name: tries.count(name) for name in ("recovers", "lost", "broken")} == {
        "recovers": 3,
        "lost": 4,
        "broken": 1,
    }
    assert {row.task: row.cause for row in run.tally.rows} == {
        "recovers": None,
        "lost": Cause.LOST,
        "broken": Cause.TASK,
    }
    assert len(rows(tmp_path / "run")) == 8


async def test_a_cancelled_run_cleans_up_and_a_resume_runs_only_unfinished_trials(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun: list[str] = []
    cleaned: list[str] = []

    async def trial(order: Order) -> Verdict:
        begun.append(order.name)
        if order.name == "a":
            return ONE
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(order.name)
        return ONE

    tasks, out = make_tasks("a", "b", "c", "d"), tmp_path / "run"
    run, _ = evaluation(monkeypatch, tasks, trial, out)
    running = asyncio.create_task(run.run())
    # A trial is listed as running before its coroutine has begun, and then it has nothing to clean.
    await until(lambda: begun == ["a", "b", "c"] and run.tally.trials == 1)
    assert {one.label for one in run.running} == {"b.1", "c.1"}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(cleaned) == ["b", "c"]
    assert [row.task for row in run.tally.rows] == ["a"]
    assert [row.task for row in rows(out)] == ["a"]

    again, workers = evaluation(monkeypatch, tasks, graded, out, resumes=True)
    await again.run()
    assert sorted(order.name for order in workers.orders) == ["b", "c", "d"]
    assert again.tally.graded == 4
    assert audit(out).problems == []


@pytest.mark.parametrize("lost", ["the row of b", "the row of b, after one of another trial"])
async def test_a_row_that_a_power_cut_lost_is_written_again_from_the_ledger(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
):
    tasks, out = make_tasks("a", "b"), tmp_path / "run"
    run, _ = evaluation(monkeypatch, tasks, graded, out, concurrency=1)
    await run.run()
    first, second = rows(out)
    kept = [first]
    if lost != "the row of b":
        # The ledger lost that trial, its row stayed, and the ticket ran again.
        kept.append(msgspec.structs.replace(second, trial="unrecorded", reward=0.25))
    (out / "results.jsonl").write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in kept))
    problems = audit(out).problems
    assert (problems == []) is (lost == "the row of b")
    assert all("has the row of the trial unrecorded" in problem for problem in problems)

    again, workers = evaluation(monkeypatch, tasks, graded, out, resumes=True)
    await again.run()
    assert workers.orders == []
    assert [row.reward for row in again.tally.rows] == [1.0, 1.0]
    assert rows(out)[-1].trial == second.trial
    assert audit(out).problems == []


@pytest.mark.parametrize(
    ("verdict", "next_tickets"),
    [
        (ONE, []),
        (Void(Cause.TASK, "CRLF"), []),
        (Void(Cause.SANDBOX, "no space"), ["eval-trials-0/0.1"]),
    ],
    ids=["graded", "void", "void and retried"],
)
async def test_a_trial_that_ended_before_a_kill_with_its_row_only_is_not_run_again(
    make_tasks: MakeTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verdict: Verdict,
    next_tickets: list[str],
):
    async def trial(order: Order) -> Verdict:
        await asyncio.sleep(0)
        return verdict

    async def killed(*_: object, **__: object) -> bool:
        raise LedgerError("killed after the row was written")

    tasks, out = make_tasks("a", "b"), tmp_path / "run"
    run, _ = evaluation(monkeypatch, tasks, trial, out, concurrency=1)
    with monkeypatch.context() as patch, pytest.raises(LedgerError, match="killed"):
        patch.setattr(Ledger, "finish", killed)
        patch.setattr(Ledger, "void", killed)
        await run.run()
    (ended,) = rows(out)

    again, workers = evaluation(monkeypatch, tasks, graded, out, resumes=True)
    await again.run()
    assert [order.ticket for order in workers.orders if order.name == "a"] == next_tickets
    assert ended.ticket not in [order.ticket for order in workers.orders]
    assert again.tally.trials == 2
    assert again.tally.graded == (1 if verdict == Void(Cause.TASK, "CRLF") else 2)
    assert audit(out).problems == []


async def test_the_row_of_a_trial_whose_start_a_power_cut_removed_is_not_used(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    start = Ledger.start

    async def start_of_a_only(self: Ledger, ticket: str, worker: str) -> bool:
        return ticket == "eval-trials-0/0.0" and await start(self, ticket, worker)

    async def killed(*_: object, **__: object) -> bool:
        raise LedgerError("killed after the row was written")

    tasks, out = make_tasks("a", "b"), tmp_path / "run"
    run, _ = evaluation(monkeypatch, tasks, graded, out)
    with monkeypatch.context() as patch, pytest.raises(LedgerError, match="killed"):
        patch.setattr(Ledger, "start", start_of_a_only)
        patch.setattr(Ledger, "finish", killed)
        await run.run()
    (ended,) = rows(out)
    unknown = msgspec.structs.replace(ended, task="b", ticket="eval-trials-1/0.0", trial="unknown")
    with (out / "results.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(unknown) + b"\n")

    again, workers = evaluation(monkeypatch, tasks, graded, out, resumes=True)
    await again.run()
    assert [order.ticket for order in workers.orders] == ["eval-trials-1/0.0"]
    assert {row.task: row.trial for row in again.trials.results}["b"] != "unknown"
    assert audit(out).problems == []


async def test_the_rate_of_a_resumed_run_is_without_the_trials_of_earlier_processes(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tasks, out = make_tasks("a", "b"), tmp_path / "run"
    run, _ = evaluation(monkeypatch, tasks, graded, out)
    await run.run()
    assert run.summary_of(2).trials_per_minute > 0
    again, _ = evaluation(monkeypatch, tasks, graded, out, resumes=True)
    await again.run()
    summary = again.summary_of(2)
    assert (again.earlier, summary.trials, summary.trials_per_minute) == (2, 2, 0.0)


async def test_a_resumed_eval_uses_its_edited_config(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_tasks("a")
    (tmp_path / "says.toml").write_text('otherwise = "Hi."\n')
    monkeypatch.chdir(tmp_path)
    request = EvalRequest(
        path=Path("tasks"),
        backend="local",
        concurrency=1,
        pattern=None,
        out=Path("run"),
        config=None,
        agent="shell",
        attempts=1,
        skip_invalid=False,
        policy=("scripted:says.toml",),
        turns=3,
        pool="fresh",
    )
    first = await asyncio.to_thread(EvalRun.prepare, request)
    config = first.directory.config.read_text()
    assert f'urls = ["scripted:{tmp_path}/says.toml"]' in config
    for before, after in (("turns = 3", "turns = 5"), ('reuse = "fresh"', 'reuse = "none"')):
        assert before in config
        config = config.replace(before, after)
    first.directory.config.write_text(config)

    monkeypatch.chdir(tmp_path / "tasks")
    directory = RunDirectory(tmp_path / "run")
    resumed = await asyncio.to_thread(EvalRun.resume, directory)
    assert resumed.urls == (f"scripted:{tmp_path}/says.toml",)
    assert resumed.plan.policy is not None and resumed.plan.policy.limits.turns == 5
    assert resumed.plan.config.pool.reuse == "none"


async def test_unwritable_results_end_the_run_with_one_error(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"
    run, _ = evaluation(monkeypatch, make_tasks("a", "b", "c"), graded, out)
    (out / "results.jsonl").unlink()
    (out / "results.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        await run.run()


async def test_the_next_trials_are_announced_to_workers_and_withdrawn_at_the_end(
    make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def trial(order: Order) -> Verdict:
        await asyncio.sleep(0.05)
        return ONE

    tasks = make_tasks("a", "b", "c")
    run, workers = evaluation(
        monkeypatch, tasks, trial, tmp_path / "run", attempts=3, concurrency=2, pool="fresh"
    )
    await run.run()
    assert any(workers.expected)
    assert max(len(kinds) for kinds in workers.expected) == 2
    assert workers.expected[-1] == []


@pytest.mark.parametrize("command", ["run", "eval", "validate"])
def test_output_of_libraries_stays_out_of_the_json(
    command: str,
    make_tasks: MakeTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plimsoll_here: Plimsoll,
):
    async def trial(order: Order) -> Verdict:
        await asyncio.sleep(0)
        print("a node has died")
        return ONE

    make_tasks("a")
    use_workers(monkeypatch, trial)
    config = '[run]\ntasks = "tasks"\nagent = "oracle"\nsteps = 1\nbatch_groups = 1\n'
    (tmp_path / "run.toml").write_text(config)
    ended = plimsoll_here(command, "run.toml" if command == "run" else "tasks", "--json")
    assert "a node has died" in ended.stderr
    assert isinstance(json.loads(ended.stdout), dict)


@pytest.mark.parametrize("command", ["eval", "validate"])
def test_an_error_names_the_command_that_continues_the_run(
    command: str,
    make_tasks: MakeTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plimsoll_here: Plimsoll,
):
    async def trial(order: Order) -> Verdict:
        await asyncio.sleep(0)
        results = Path(order.folder).parents[1] / "results.jsonl"
        results.unlink()
        results.mkdir()  # the row of this trial cannot be written
        return ONE

    make_tasks("a")
    use_workers(monkeypatch, trial, slots=1)
    ended = plimsoll_here(command, "tasks")
    (run,) = (tmp_path / "runs").iterdir()
    assert ended.returncode == 2
    assert f"continue: plimsoll resume runs/{run.name}" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("plimsoll: cannot write ")


@pytest.mark.parametrize("command", ["eval", "validate"])
@pytest.mark.parametrize("why", ["an error", "an interrupt"])
def test_an_end_before_the_first_trial_leaves_no_run_and_names_none(
    command: str,
    why: str,
    make_tasks: MakeTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plimsoll_here: Plimsoll,
):
    async def wait_ready() -> None:
        if why == "an error":
            raise WorkerError("a worker cannot start: no memory")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    make_tasks("a")
    workers = use_workers(monkeypatch, graded)
    monkeypatch.setattr(workers, "wait_ready", wait_ready)
    ended = plimsoll_here(command, "tasks")
    assert ended.returncode == (2 if why == "an error" else 130)
    assert "resume" not in ended.stdout + ended.stderr
    assert ("a worker cannot start: no memory" in ended.stderr) is (why == "an error")
    assert workers.orders == [] == list((tmp_path / "runs").iterdir())
