"""Trials for another trainer follow the rules of a run."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Literal

import pytest
from outside_files import read_rows, write_config

from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.core.versions import Version
from plimsoll.gateway.upstreams.scripted.script import Turn
from plimsoll.gateway.upstreams.scripted.server import ScriptedServer, serve_script
from plimsoll.integrations.token_rows import token_rows
from plimsoll.integrations.trials import Trials
from plimsoll.runs.breaker.canaries import DEFAULT_EVERY
from plimsoll.trials.verdicts import Cause
from plimsoll.workers.worker.policy_service import ServedPolicy
from plimsoll.workers.worker.trajectory_store import read_stored

Plimsoll = Callable[..., CompletedProcess[str]]


@asynccontextmanager
async def trials_of(
    config: Path,
    out: Path,
    *,
    keep_going: bool = False,
    key: str | None = None,
    kind: Literal["trl", "verl"] = "verl",
) -> AsyncIterator[tuple[Trials, ScriptedServer]]:
    """Trials whose policy runs one command and submits."""

    def script(asked) -> Turn:
        is_first = len(asked.messages) == 2
        return Turn(run="touch /app/done") if is_first else Turn(text="Done.")

    async with serve_script(script) as server:
        server.key = key or ""
        served = ServedPolicy((server.url,), key)
        async with Trials(config, served, out=out, kind=kind, keep_going=keep_going) as trials:
            yield trials, server


async def test_a_graded_trial_has_its_reward_and_the_policys_own_tokens(tmp_path, home):
    config = write_config(tmp_path, home, "touch")
    async with trials_of(config, tmp_path / "run") as (trials, _):
        trials.set_version(Version(0, 7))
        row = await trials.run("touch", "1")
    (line,) = token_rows(row.trajectory)
    (sample,) = read_stored(row.trajectory).samples()
    assert (row.reward, row.cause) == (1.0, None)
    assert row.turns == 2 and row.answer_tokens == line.trained
    assert row.prompt_tokens and row.sandbox_seconds and row.trial and row.folder
    assert line.prompt + line.completion == list(sample.ids)
    assert line.trained == sum(sample.mask) and line.turns == 2
    assert [p for p, m in zip(line.logprobs, line.mask, strict=True) if not m] == [0.0] * (
        len(line.mask) - line.trained
    )
    assert line.mask[0] == line.mask[-1] == 1
    assert {v for v in sample.versions if v is not None} == {Version(0, 7)}


async def test_the_key_of_the_policy_is_in_no_file_of_the_run(tmp_path, home):
    key = f"hush-{secrets.token_hex(8)}"
    config = write_config(tmp_path, home, "touch")
    async with trials_of(config, tmp_path / "run", key=key) as (trials, _):
        row = await trials.run("touch", "1")
        assert key not in repr(trials.plan)
    assert row.reward == 1.0
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if key.encode() in file.read_bytes()]


async def test_a_void_trial_is_tried_again_and_never_becomes_a_number(tmp_path, home):
    config = write_config(tmp_path, home, "broken")
    async with trials_of(config, tmp_path / "run") as (trials, _):
        row = await trials.run("broken", "1")
    assert (row.reward, row.cause) == (None, Cause.GRADER)
    tried = read_rows(tmp_path / "run")
    assert [row.ticket for row in tried] == ["eval-1-0/0.0", "eval-1-0/0.1"]
    assert {row.reward for row in tried} == {None}


async def test_a_trial_is_graded_once_its_failed_policy_answers_again(
    tmp_path, home, plimsoll_here
):
    config = write_config(tmp_path, home, "touch")
    async with trials_of(config, tmp_path / "run", kind="trl") as (trials, server):
        server.faults.extend([401])
        row = await trials.run("touch", "1")
    assert row.reward == 1.0
    assert [row.cause for row in read_rows(tmp_path / "run")] == [Cause.POLICY, None]
    check_commands(plimsoll_here)


def check_commands(plimsoll_here: Plimsoll) -> None:
    """Check that the run of one trial is shown and audited like others, and is not resumed."""
    checked = plimsoll_here("ledger", "./run", "--check")
    assert checked.returncode == 0, checked.stdout
    assert "1/1 trials   mean 1.00   void " in plimsoll_here("status", "./run").stdout
    assert "run is not running" in plimsoll_here("stop", "./run").stdout
    refused = plimsoll_here("resume", "./run")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "plimsoll: run was driven by trl and cannot be resumed here: start the trainer again, with "
        "another output folder\n"
    )


async def test_a_start_with_only_void_trials_trips_the_breaker(tmp_path, home):
    config = write_config(tmp_path, home, "broken", concurrency=8)
    async with trials_of(config, tmp_path / "run") as (trials, _):
        with pytest.raises(TrainingError, match=r"the breaker tripped .*keep_going=True"):
            for call in range(16):
                await trials.run("broken", str(call))


def test_canaries_run_however_few_steps_the_config_has(tmp_path, home):
    config = write_config(tmp_path, home, "touch")
    served = ServedPolicy(("http://policy/v1",))
    canaries = Trials(config, served, kind="trl", out=tmp_path / "run").plan.canaries
    assert canaries is not None and canaries.every == DEFAULT_EVERY
    text = config.read_text()
    for every in (0, 7):
        config.write_text(text.replace("[run]\n", f"[run]\ncanary_every = {every}\n"))
        canaries = Trials(config, served, kind="trl", out=tmp_path / "run").plan.canaries
        assert (0 if canaries is None else canaries.every) == every


async def test_a_missing_task_is_named(tmp_path, home):
    config = write_config(tmp_path, home, "touch")
    async with trials_of(config, tmp_path / "run") as (trials, _):
        assert trials.tasks == ["touch"]
        with pytest.raises(UsageError, match="there is no task 'mend'"):
            await trials.run("mend", "1")
