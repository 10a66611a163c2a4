"""Rejected batches, directories with missing files, and runs that fail late."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rollout_runs import MakeConfig, all_batches, check_audit, rows

from plimsoll.core.endings import Ending
from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group, Member, MemberState
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.rules.batching import Batch as ChosenBatch
from plimsoll.runs.audit import audit
from plimsoll.runs.breaker.breaker import BreakerMonitor, Canary
from plimsoll.runs.files import json_lines
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import voided
from plimsoll.runs.rollout_buffer import RolloutBuffer
from plimsoll.runs.rollouts import Rollouts
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.messages import Order, Result

WHY = "its trajectory is gone"


async def test_a_rejected_batch_cannot_be_committed(make_config: MakeConfig, tmp_path: Path):
    published: list[Version] = []

    async def publish(version: Version) -> None:
        published.append(version)

    async with Rollouts(make_config("coin-a", "coin-b", steps=2), out=tmp_path / "run") as rollouts:
        batches = rollouts.batches()
        first = await anext(batches)
        for wrong in ({}, {"9-0": WHY}):
            with pytest.raises(UsageError, match="must name groups of the batch"):
                await rollouts.reject(first, wrong)
        await rollouts.reject(first, {first.groups[0].id: WHY})
        for again in (
            rollouts.commit(first, lambda _: None, publish=publish),
            rollouts.reject(first, {first.groups[1].id: WHY}),
        ):
            with pytest.raises(LedgerError, match="is not the current batch: it was rejected"):
                await again
        assert not published
        assert not (tmp_path / "run/checkpoints").exists()
        second = await anext(batches)
        assert (second.step, second.version) == (first.step, first.version)
        with pytest.raises(LedgerError, match="is not the current batch"):
            await rollouts.commit(first)
        await rollouts.commit(second)
        await all_batches(rollouts)
    check_audit(tmp_path / "run")


async def test_a_batch_cannot_be_rejected_once_its_weights_may_be_served(
    make_config: MakeConfig, tmp_path: Path
):
    async def refuse(version: Version) -> None:
        raise LedgerError(f"no server takes {version}")

    async with Rollouts(make_config("coin-a", "coin-b", steps=2), out=tmp_path / "run") as rollouts:
        batch = await anext(rollouts.batches())
        with pytest.raises(LedgerError, match="no server takes 1"):
            await rollouts.commit(batch, publish=refuse)
        with pytest.raises(LedgerError, match="its weights may be served already"):
            await rollouts.reject(batch, {batch.groups[0].id: WHY})
        await rollouts.commit(batch)
    check_audit(tmp_path / "run")


async def test_rejected_groups_are_void_in_the_results_even_with_a_slow_ledger(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reject = Ledger.reject

    async def slow(self: Ledger, reasons: dict[str, str]) -> None:
        await reject(self, reasons)
        await asyncio.sleep(0.6)  # the controller takes turns meanwhile

    monkeypatch.setattr(Ledger, "reject", slow)
    async with Rollouts(make_config("coin-a", "coin-b", steps=1), out=tmp_path / "run") as rollouts:
        batches = rollouts.batches()
        first = await anext(batches)
        bad = first.groups[0]
        await rollouts.reject(first, {bad.id: WHY})
        await rollouts.commit(await anext(batches))
    lost = [row for row in rows(tmp_path / "run") if row.cause == "lost"]
    assert [row.ticket for row in lost] == [member.ticket for member in bad.members]
    assert {row.reason for row in lost} == {WHY}


async def test_a_repeatedly_rejected_prompt_excludes_its_task(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", "coin-c", steps=4, requeues=1)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        async for batch in rollouts.batches():
            bad = {group.id: WHY for group in batch.groups if group.task == "coin-a"}
            if bad:
                await rollouts.reject(batch, bad)
            else:
                await rollouts.commit(batch)
    assert list(rollouts.summary.quarantined) == ["coin-a"]
    check_audit(tmp_path / "run")


async def _stopped_with_something_buffered(config, run: Path) -> None:
    """A run that ends with a buffered group in no batch."""
    async with Rollouts(config, out=run) as rollouts:
        batches = rollouts.batches()
        await rollouts.commit(await anext(batches))
        async with asyncio.timeout(30):
            while not rollouts.status().buffered:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        rollouts.stop()


@pytest.mark.parametrize("damage", ["gone", "zeros"])
async def test_a_graded_rollout_without_a_row_is_rolled_out_again(
    make_config: MakeConfig, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    config, run = make_config("coin-a", "coin-b", "coin-c", steps=4, depth=1), tmp_path / "run"
    await _stopped_with_something_buffered(config, run)
    lines = (run / "results.jsonl").read_bytes().splitlines(keepends=True)
    left = b"" if damage == "gone" else b"\0" * 64 + b"\n"
    (run / "results.jsonl").write_bytes(left * len(lines))
    async with Rollouts(config, out=run, trains=False) as rollouts:
        batches = await all_batches(rollouts)
    assert len(batches) == 3
    assert any(group.id.endswith("-1") for batch in batches for group in batch.groups)
    assert "graded rollouts: their groups are rolled out again" in caplog.text
    assert ("results.jsonl:1 is damaged and skipped" in caplog.text) is (damage == "zeros")
    check_audit(run)


async def test_the_row_of_a_trial_lost_in_a_power_cut_is_not_used_for_the_graded_one(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config, run = make_config("coin-a", "coin-b", "coin-c", steps=4, depth=1), tmp_path / "run"
    await _stopped_with_something_buffered(config, run)
    dead = [msgspec.structs.replace(row, trial="dead", folder="trials/dead") for row in rows(run)]
    (run / "results.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(dead))
    (found, *_) = audit(run).problems
    assert "results.jsonl has the row of the trial dead" in found
    async with Rollouts(config, out=run, trains=False) as rollouts:
        batches = await all_batches(rollouts)
    members = [member for batch in batches for group in batch.groups for member in group.members]
    assert all(member.folder.name != "dead" for member in members)
    assert any(group.id.endswith("-1") for batch in batches for group in batch.groups)
    assert "graded rollouts: their groups are rolled out again" in caplog.text


async def test_a_grade_revoked_by_a_later_row_is_not_trained_on(
    make_config: MakeConfig, tmp_path: Path
):
    config, run = make_config("coin-a", "coin-b", "coin-c", steps=4, depth=1), tmp_path / "run"
    await _stopped_with_something_buffered(config, run)
    with (run / "results.jsonl").open("ab") as file:
        for row in rows(run):
            file.write(msgspec.json.encode(voided(row, Cause.SANDBOX, "a canary failed")) + b"\n")
    async with Rollouts(config, out=run, trains=False) as rollouts:
        batches = await all_batches(rollouts)
    assert any(group.id.endswith("-1") for batch in batches for group in batch.groups)
    check_audit(run)


async def test_the_rows_of_a_batch_are_synced_before_the_ledger_consumes_it(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    consume, synced = Ledger.consume, list[int]()

    async def watched(self: Ledger, batch: ChosenBatch) -> None:
        tickets = {ticket for group in batch.groups for ticket in group.tickets}
        assert tickets <= {row.ticket for row in rows(run)[: synced[-1]]}
        await consume(self, batch)

    def sync(self: RunDirectory) -> None:
        before = len(rows(run))
        really(self)
        synced.append(before)

    run, really = tmp_path / "run", RunDirectory.sync_results
    monkeypatch.setattr(Ledger, "consume", watched)
    monkeypatch.setattr(RunDirectory, "sync_results", sync)
    async with Rollouts(make_config("coin-a", "coin-b", steps=2), out=run) as rollouts:
        assert len(await all_batches(rollouts)) == 2


async def test_damaged_lines_of_steps_and_evaluations_are_logged_and_skipped(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config, run = make_config("coin-a", "coin-b", steps=3), tmp_path / "run"
    async with Rollouts(config, out=run) as rollouts:
        async for batch in rollouts.batches():
            await rollouts.commit(batch)
            if batch.step == 2:
                rollouts.stop()
    for name in ("steps.jsonl", "heldout.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'{"step": "one"}\n')
    async with Rollouts(config, out=run, trains=False) as rollouts:
        batches = await all_batches(rollouts)
    assert len(batches) == 1
    assert len(rollouts.summary.rewards) == 3
    assert "steps.jsonl:3 is damaged and skipped" in caplog.text
    assert "heldout.jsonl:1 is damaged and skipped" in caplog.text


async def test_a_run_that_fails_after_its_last_step_is_not_done(
    make_config: MakeConfig, tmp_path: Path
):
    with pytest.raises(LedgerError, match="no server is left"):
        async with Rollouts(make_config("coin-a", steps=1), out=tmp_path / "run") as rollouts:
            await all_batches(rollouts)
            raise LedgerError("no server is left to evaluate with")
    summary = rollouts.summary
    assert (summary.steps, summary.done) == (1, False)
    assert summary.ended == "no server is left to evaluate with"


async def test_a_canary_that_fails_during_consume_does_not_void_the_batch(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, consume = tmp_path / "run", Ledger.consume
    config = make_config("coin-a", "coin-b", "coin-c", "coin-d", steps=4, depth=1)
    async with Rollouts(config, out=run) as rollouts:
        await until(lambda: rollouts.status().buffered == 4, 60)
        doubtful = tuple(row.ticket for row in rows(run))

        def fails(watching: BreakerMonitor, *_: object) -> tuple[str, ...]:
            watching.doubt = Void(Cause.GRADER, "canary failed after it")
            return doubtful

        monkeypatch.setattr(BreakerMonitor, "canary_finished", fails)
        order = Order(ticket="canary-9", task="x", name="x", attempt=9, folder="x")
        result = Result(ticket="canary-9", verdict=Graded(0.0, Ending.SUBMITTED), seconds=0.1)
        failing: list[asyncio.Task[None]] = []

        async def consuming(self: Ledger, batch: ChosenBatch) -> None:
            writing = asyncio.create_task(consume(self, batch))
            await asyncio.sleep(0)  # recorded in the books, not yet on disk
            canary = rollouts._scheduler._record_canary(Canary("coin-a", 9, 0), order, result)
            failing.append(asyncio.create_task(canary))
            await writing

        monkeypatch.setattr(Ledger, "consume", consuming)
        batch = await anext(rollouts.batches())
        await failing[0]
        used = {member.ticket for group in batch.groups for member in group.members}
        await rollouts.commit(batch)
        rollouts.stop()
    worthless = {row.ticket for row in rows(run) if row.cause is Cause.GRADER}
    assert (len(used), used & worthless) == (4, set())
    assert set(doubtful) <= used | worthless
    check_audit(run)


def test_a_graded_rollout_without_a_row_is_never_in_a_batch(directory: RunDirectory):
    member = Member(state=MemberState.GRADED, reward=1.0)
    group = Group(id="0-0", prompt=0, task="coin-a", admitted=FIRST_VERSION, members=[member])
    with pytest.raises(LedgerError, match=r"the graded rollout 0-0/0\.0 has no row: a bug"):
        RolloutBuffer(directory).batch([group], Books())


async def test_a_missing_task_of_undone_steps_is_an_error(make_config: MakeConfig, tmp_path: Path):
    one_by_one = {"batch_groups": 1, "depth": 0, "max_staleness": 0}
    config, run = make_config("coin-a", "coin-b", "coin-c", steps=3, **one_by_one), tmp_path / "run"
    async with Rollouts(config, out=run) as rollouts:
        async for batch in rollouts.batches():
            if batch.step == 2:
                rollouts.stop()
            await rollouts.commit(batch)
    # Without a checkpoint both steps are undone; the second has rollouts of the first's weights.
    task = tmp_path / "tasks" / batch.groups[0].task
    task.rename(tmp_path / "gone")
    with pytest.raises(UsageError, match=f"{task.name}, which is not in .* put it back"):
        async with Rollouts(config, out=run) as rollouts:
            await all_batches(rollouts)
    (tmp_path / "gone").rename(task)
    async with Rollouts(config, out=run) as rollouts:
        assert len(await all_batches(rollouts)) == 3
    check_audit(run)


async def test_a_truncated_ledger_is_not_resumed(make_config: MakeConfig, tmp_path: Path):
    config, run = make_config("coin-a", "coin-b", steps=4), tmp_path / "run"
    async with Rollouts(config, out=run, trains=False) as rollouts:
        async for batch in rollouts.batches():
            await rollouts.commit(batch)
            if batch.step == 2:
                rollouts.stop()
    for file in run.glob("ledger.db*"):
        file.rename(tmp_path / file.name)
    Journal.create(run / "ledger.db").close()  # as if the write-ahead log were missing
    with pytest.raises(LedgerError, match=r"at version 0, and .*steps.jsonl has the step of"):
        async with Rollouts(config, out=run, trains=False):
            pass
    for file in (*run.glob("ledger.db*"), run / "ledger.lock"):
        file.unlink()
    for file in tmp_path.glob("ledger.db*"):
        file.rename(run / file.name)
    async with Rollouts(config, out=run, trains=False) as rollouts:
        assert len(await all_batches(rollouts)) == 2
    check_audit(run)


async def test_a_slow_run_directory_delays_lines_and_not_the_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    append, finish = json_lines._append, Ledger.finish
    early: list[str] = []

    def slow(path: Path, lines: bytes) -> None:
        time.sleep(0.5)
        append(path, lines)

    async def finishing(self: Ledger, ticket: str, *rest: Any) -> bool:
        if ticket not in {row.ticket for row in rows(tmp_path / "run")}:
            early.append(ticket)
        return await finish(self, ticket, *rest)

    monkeypatch.setattr(json_lines, "_append", slow)
    monkeypatch.setattr(Ledger, "finish", finishing)
    config = make_config(*(f"coin-{number}" for number in range(8)), steps=2, batch_groups=4)
    lags: list[float] = []

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0.02)
            lags.append(loop.time() - began)

    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        listening = asyncio.create_task(listen())
        batches = await all_batches(rollouts)
        listening.cancel()
    assert len(batches) == 2
    assert sum(lag > 0.4 for lag in lags) < len(lags) / 10, "the event loop continues meanwhile"
    assert early == [], "each row is in the file before its event is in the ledger"
    check_audit(tmp_path / "run")


async def test_a_batch_is_chosen_again_if_a_group_is_abandoned_during_the_sync(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, sync = tmp_path / "run", RunDirectory.sync_results
    config = make_config("coin-a", "coin-b", "coin-c", "coin-d", steps=4, depth=1)
    given_up: list[str] = []
    async with Rollouts(config, out=run) as rollouts:
        await until(lambda: rollouts.status().buffered == 4, 60)
        loop, ledger = asyncio.get_running_loop(), rollouts._ledger

        async def give_up() -> None:
            choice = ledger.choose()
            assert isinstance(choice, ChosenBatch)
            ticket = choice.groups[0].ticket(0)
            given_up.extend(await ledger.distrust([ticket], Void(Cause.GRADER, "a canary failed")))

        def slow(self: RunDirectory) -> None:
            if not given_up:
                asyncio.run_coroutine_threadsafe(give_up(), loop).result(30)
            sync(self)

        monkeypatch.setattr(RunDirectory, "sync_results", slow)
        batch = await anext(rollouts.batches())
        assert given_up[0] not in {group.id for group in batch.groups}
        await rollouts.commit(batch)
        rollouts.stop()
    check_audit(run)
