"""Evaluations: held-out tasks on the run's own workers, with separate accounting."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import pytest
from named_environment import START_SECONDS, USAGE
from rollout_runs import MakeConfig, all_batches, check_audit, rows
from scripted_workers import ONE, use_workers

from plimsoll.core.errors import UsageError
from plimsoll.core.versions import Lineages, Version
from plimsoll.runs.evaluation.held_out import HeldOutResult, read_held_out
from plimsoll.runs.files.results import Row
from plimsoll.runs.rollouts import Rollouts
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Verdict
from plimsoll.workers.messages import Order

Plimsoll = Callable[..., CompletedProcess[str]]


def held_out_rows(run: Path) -> list[Row]:
    return msgspec.json.Decoder(Row).decode_lines((run / "heldout_trials.jsonl").read_bytes())


async def test_evaluations_before_between_and_after_steps_do_not_change_training(
    make_config: MakeConfig, tmp_path: Path
):
    # A held-out task with the name of a training task: their results stay separate.
    config = make_config(
        "coin-a", "coin-b", heldout=("coin-a", "waits-z"), attempts=2, steps=3, depth=1
    )
    run = tmp_path / "run"
    found: list[HeldOutResult | None] = []
    async with Rollouts(config, out=run) as rollouts:
        (run / "go").touch()
        found.append(await rollouts.evaluate("before"))
        async for batch in rollouts.batches():
            await rollouts.commit(batch)
            if batch.step == 2:
                found.append(await rollouts.evaluate("between"))
        found.append(await rollouts.evaluate("after"))
    before, between, after = found
    assert before is not None and between is not None and after is not None
    assert [(one.step, one.version) for one in (before, between, after)] == [
        (0, "0"),
        (2, "2"),
        (3, "3"),
    ]
    for one in (before, between, after):
        assert (one.graded, one.void) == (4, {})
        assert one.tasks["waits-z"] == 1.0
        assert one.reward == pytest.approx((one.tasks["coin-a"] + 1.0) / 2)
    summary = rollouts.summary
    assert (summary.trials, summary.graded, summary.steps, summary.done) == (12, 12, 3, True)
    assert (summary.heldout_before, summary.heldout_after) == (before.reward, after.reward)
    assert len(rows(run)) == 12
    assert len(held_out_rows(run)) == 12
    tickets = {row.ticket for row in held_out_rows(run)}
    assert {"eval-before-0/0.0", "eval-after-1/1.0"} <= tickets
    check_audit(run)


def test_a_run_without_training_evaluates_its_held_out_tasks_once_each_time_they_are_due(
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plimsoll_here: Plimsoll,
):
    async def trial(order: Order) -> Verdict:
        await asyncio.sleep(0)
        return ONE

    make_config("a", "b", heldout=("z",), steps=3)
    config = tmp_path / "run.toml"
    config.write_text(config.read_text().replace("[evaluation]", "[evaluation]\nevery = 2"))
    use_workers(monkeypatch, trial)
    ended = plimsoll_here("run", "run.toml", "--out", "run")
    assert ended.returncode == 0, ended.stderr
    assert "held-out reward 1.00 → 1.00" in ended.stdout
    file = tmp_path / "run/heldout.jsonl"
    found = msgspec.json.Decoder(HeldOutResult).decode_lines(file.read_bytes())
    assert [one.step for one in found] == [0, 2, 3]
    assert {row.task for row in rows(tmp_path / "run")} == {"a", "b"}
    check_audit(tmp_path / "run")
    # A resume does not repeat the evaluation of a step.
    workers = use_workers(monkeypatch, trial)
    again = plimsoll_here("resume", "run")
    assert again.returncode == 0, again.stderr
    assert workers.orders == []
    assert msgspec.json.Decoder(HeldOutResult).decode_lines(file.read_bytes()) == found


async def test_void_trials_are_retried_and_ungraded_tasks_are_not_in_the_mean(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", heldout=("lost-a", "void-b"), steps=1)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        found = await rollouts.evaluate("before")
        await all_batches(rollouts)
    assert found is not None
    assert found.tasks == {"lost-a": 1.0, "void-b": None}
    assert (found.reward, found.graded, found.void) == (1.0, 1, {"grader": 1})
    # Void evaluation trials do not count as void training trials, and trip no breaker.
    assert "grader" not in rollouts.summary.void
    assert rollouts.summary.done
    assert (rollouts.summary.heldout_before, rollouts.summary.heldout_after) == (1.0, None)
    causes = [row.cause for row in held_out_rows(tmp_path / "run")]
    assert causes.count("lost") >= 1
    check_audit(tmp_path / "run")


async def test_training_and_held_out_rows_have_the_figures_of_their_trials(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", heldout=("coin-z", "void-z"), steps=1)
    run = tmp_path / "run"
    async with Rollouts(config, out=run) as rollouts:
        await rollouts.evaluate("before")
        await all_batches(rollouts)
    written = [*rows(run), *held_out_rows(run)]
    # Four of training, and a void held-out trial is tried twice.
    assert len(written) == 4 + 3
    for row in written:
        figures = row.turns, row.prompt_tokens, row.answer_tokens, row.sandbox_seconds
        assert figures == (*astuple(USAGE), START_SECONDS)
        assert row.ticket and row.trial and row.folder
        assert not Path(row.folder).is_absolute()


async def test_held_out_trials_start_before_waiting_training_trials(
    make_config: MakeConfig, tmp_path: Path
):
    names = tuple(f"coin-{n}" for n in range(8))
    config = make_config("waits-a", "waits-b", heldout=names, steps=1, max_running=4)
    run = tmp_path / "run"
    async with asyncio.timeout(120), Rollouts(config, out=run) as rollouts:
        found = asyncio.create_task(rollouts.evaluate("now"))
        await until(lambda: rollouts.status().running > 0, 60)
        (run / "go").touch()
        measured = await found
        await all_batches(rollouts)
    assert measured is not None
    assert measured.graded == 8
    check_audit(run)


async def test_training_does_not_starve_an_evaluation_with_more_trials_than_a_group(
    make_config: MakeConfig, tmp_path: Path
):
    ahead = {"batch_groups": 1, "depth": 6, "max_staleness": 6, "max_running": 11}
    config = make_config("sways-a", heldout=("coin-z",), attempts=11, steps=40, **ahead)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        async for batch in rollouts.batches():
            await rollouts.commit(batch)
            if batch.step == 1:
                under_way = asyncio.create_task(rollouts.evaluate("now"))
            if batch.step == 20:
                assert under_way.done()
    assert rollouts.summary.done


async def test_a_stopped_run_skips_its_evaluation_and_a_resume_runs_it(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", heldout=("waits-a", "waits-b"), steps=2)
    run = tmp_path / "run"
    async with Rollouts(config, out=run, trains=False) as rollouts:
        await all_batches(rollouts)
        under_way = asyncio.create_task(rollouts.evaluate("after"))
        await until(lambda: rollouts.status().running == 2, 20)
        assert rollouts.status().state == "running"
        rollouts.stop()
        assert await under_way is None
        assert await rollouts.evaluate("after") is None
    assert rollouts.held_out == []
    assert rollouts.summary.done
    check_audit(run)
    (run / "go").touch()
    async with Rollouts(config, out=run, trains=False) as rollouts:
        found = await rollouts.evaluate("after")
    assert found is not None
    assert (found.name, found.reward, found.step) == ("after", 1.0, 2)
    assert held_out_rows(run)[-1].ticket.startswith("eval-after.2-")
    check_audit(run)


async def test_unstarted_training_tickets_do_not_delay_the_last_evaluation(
    make_config: MakeConfig, tmp_path: Path
):
    ahead = {"depth": 1, "max_running": 4}
    config = make_config("later-a", "later-b", heldout=("coin-z",), attempts=4, steps=9, **ahead)
    run = tmp_path / "run"
    async with Rollouts(config, out=run, trains=False) as rollouts:
        await rollouts.commit(await anext(rollouts.batches()))
        await until(lambda: rollouts.status().running == 4, 20)
    assert rollouts.status().waiting == 4, "training has taken all slots"
    step = rollouts.version.number
    shorter = config.model_copy(update={"run": config.run.model_copy(update={"steps": step})})
    async with asyncio.timeout(60), Rollouts(shorter, out=run, trains=False) as rollouts:
        found = await rollouts.evaluate("after")
    assert found is not None
    assert (found.graded, rollouts.summary.done) == (4, True)
    check_audit(run)
    # With more steps, the remaining groups are used.
    (run / "go").touch()
    longer = config.model_copy(update={"run": config.run.model_copy(update={"steps": step + 2})})
    async with asyncio.timeout(60), Rollouts(longer, out=run, trains=False) as rollouts:
        assert len(await all_batches(rollouts)) == 2
    check_audit(run)


CHILD = """
import asyncio, sys
from plimsoll.runs.rollouts import Rollouts

async def main():
    async with Rollouts(sys.argv[1], out=sys.argv[2], trains=False) as rollouts:
        await rollouts.evaluate("now")

asyncio.run(main())
"""


async def test_an_evaluation_interrupted_by_kill_9_runs_again_from_its_start(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", heldout=("coin-z", "waits-a", "waits-b"), steps=2)
    run = tmp_path / "run"
    given = (str(tmp_path / "run.toml"), str(run))
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, *given)
    try:
        await until((run / "heldout_trials.jsonl").exists, 60)
    finally:
        child.kill()
        await child.wait()
    check_audit(run)
    (run / "go").touch()
    async with Rollouts(config, out=run, trains=False) as rollouts:
        assert rollouts.held_out == []
        found = await rollouts.evaluate("now")
        await all_batches(rollouts)
    assert found is not None
    assert (found.graded, found.void) == (3, {})
    assert {row.ticket.partition("/")[0] for row in held_out_rows(run)[-3:]} == {
        "eval-now.2-0",
        "eval-now.2-1",
        "eval-now.2-2",
    }
    assert rollouts.summary.done
    check_audit(run)


async def test_an_abandoned_evaluation_leaves_no_running_trial(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", heldout=("waits-a", "waits-b"), steps=3)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        under_way = asyncio.create_task(rollouts.evaluate("now"))
        await until(lambda: rollouts.status().running >= 2, 20)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        await all_batches(rollouts)
        assert rollouts.status().running == 0
    assert rollouts.summary.done
    check_audit(tmp_path / "run")


async def test_a_resumed_run_has_earlier_evaluation_results(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", heldout=("coin-z",), steps=3)
    run = tmp_path / "run"
    async with Rollouts(config, out=run) as rollouts:
        before = await rollouts.evaluate("before")
        async for batch in rollouts.batches():
            await rollouts.commit(batch)
            await rollouts.evaluate("undone")
            break
    async with Rollouts(config, out=run) as rollouts:
        # The step has no checkpoint, so it is undone, together with the evaluation after it.
        assert rollouts.held_out == [before]
        await all_batches(rollouts)
        after = await rollouts.evaluate("after")
    assert after is not None
    assert after.version == "1:3"
    assert rollouts.summary.heldout_before == before.reward
    assert rollouts.summary.heldout_after == after.reward


def line(version: str, name: str = "x", reward: float = 0.0) -> HeldOutResult:
    return HeldOutResult(
        name=name,
        step=Version.parse(version).number,
        version=version,
        reward=reward,
        graded=1,
        void={},
        tasks={},
        seconds=0.0,
    )


def test_results_of_abandoned_lineages_are_not_reported(tmp_path: Path):
    file = tmp_path / "heldout.jsonl"
    lines = [line("0"), line("5"), line("10"), line("1:8"), line("1:8", reward=1.0)]
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    lineages = Lineages()
    lineages.branch(1, Version(0, 6))
    kept = read_held_out(file, lineages, Version(1, 9))
    assert [(one.version, one.reward) for one in kept] == [("0", 0.0), ("5", 0.0), ("1:8", 1.0)]


async def test_a_run_without_held_out_tasks_cannot_be_evaluated(
    make_config: MakeConfig, tmp_path: Path
):
    async with Rollouts(make_config("coin-a", steps=1), out=tmp_path / "run") as rollouts:
        with pytest.raises(UsageError, match=r"\[evaluation\] tasks"):
            await rollouts.evaluate("now")
        await all_batches(rollouts)


def test_more_attempts_than_concurrent_trials_are_rejected(make_config: MakeConfig, tmp_path: Path):
    config = make_config("coin-a", heldout=("coin-z",), attempts=9, steps=1, max_running=4)
    with pytest.raises(UsageError, match="attempts is 9"):
        Rollouts(config, out=tmp_path / "run")
