"""Limits of the policy session, and the blame for a timeout."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from helpers import HOST, check_graded, check_void, write_task_folder
from plimsoll.agents.shell import Shell
from plimsoll.core.endings import Ending
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest
from plimsoll.gateway.upstreams.scripted.script import Rule, Script, Turn
from plimsoll.gateway.upstreams.scripted.server import serve_script
from plimsoll.sandboxes.protocol import Backend
from plimsoll.trajectories import trajectory_file
from plimsoll.trials import policy_session
from plimsoll.trials.verdicts import Cause
from policy_agents import AskingAgent, PolicyTrial, RunTrial, over_http, trial_with

GRADER = "([ -e /app/done ] && echo 1 || echo 0) > /logs/verifier/reward.txt"
SHORT_TIME = "[agent]\ntimeout_sec = 3\n"


@pytest.fixture
def ask(backend: Backend, tmp_path: Path) -> RunTrial:
    return trial_with(backend, tmp_path)


@pytest.fixture
def short_silence_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of silence: most of a short timeout may pass before the first request."""
    monkeypatch.setattr(policy_session, "MAX_SILENCE", 0.2)


def echo(request: ScriptedRequest) -> str:
    return f"You said {request.last}."


def ended(ran: PolicyTrial) -> tuple[Ending | None, str]:
    """The endings in the verdict and in the trajectory."""
    assert ran.trajectory.closed is not None
    return ran.verdict.ending, ran.trajectory.closed.ending


@pytest.mark.every_backend
async def test_exhausted_turns_are_graded_as_budget(write_task, ask: RunTrial):
    script = "ask 1; ask 2; touch /app/done; ask 3; ask 4; true"
    ran = await ask(
        write_task(test=GRADER), AskingAgent(script), ScriptedPolicy(echo), Limits(turns=2)
    )
    check_graded(ran, 1.0)
    assert ended(ran) == (Ending.BUDGET, "budget")
    end = ran.file.ends["main"]
    assert (end.ending, end.turns) == (Ending.BUDGET, 2)
    assert "2 turns" in end.detail
    assert len(ran.trajectory.exchanges) == 2


async def test_exhausted_tokens_are_graded_as_budget(write_task, ask: RunTrial):
    script = "ask 1; touch /app/done; ask 2; true"
    ran = await ask(
        write_task(test=GRADER), AskingAgent(script), ScriptedPolicy(echo), Limits(tokens=5)
    )
    check_graded(ran, 1.0)
    assert ended(ran) == (Ending.BUDGET, "budget")
    assert "of 5" in ran.file.ends["main"].detail
    assert ran.file.ends["main"].turns == 1


async def test_exactly_enough_turns_are_not_budget(write_task, ask: RunTrial):
    ran = await ask(
        write_task(), AskingAgent("ask 1; ask 2"), ScriptedPolicy(echo), Limits(turns=2)
    )
    assert ended(ran) == (Ending.SUBMITTED, "submitted")


async def test_the_built_in_agent_out_of_turns_is_graded(write_task, ask: RunTrial):
    turns = (Turn(run="touch /app/done"), *(Turn(run=f"echo {n}") for n in range(9)))
    script = ScriptedPolicy(Script(turns=turns))
    ran = await ask(write_task(test=GRADER), Shell(), script, Limits(turns=3))
    check_graded(ran, 1.0)
    assert ended(ran) == (Ending.BUDGET, "budget")


@pytest.mark.every_backend
async def test_an_agent_out_of_time_is_graded_as_budget(write_task, ask: RunTrial):
    task = write_task(test=GRADER, toml=SHORT_TIME)
    ran = await ask(task, AskingAgent("ask 1; touch /app/done; sleep 60"), ScriptedPolicy(echo))
    check_graded(ran, 1.0)
    assert ended(ran) == (Ending.BUDGET, "budget")
    assert "3 s" in ran.file.ends["main"].detail


@pytest.mark.every_backend
@pytest.mark.usefixtures("short_silence_limit")
@pytest.mark.parametrize("how", ["", "--stream"], ids=["whole", "stream"])
async def test_a_silent_policy_voids_the_trial(write_task, ask: RunTrial, how: str):
    task = write_task(test=GRADER, toml=SHORT_TIME)
    async with serve_script(echo) as server, over_http(server) as upstream:
        server.faults.extend([None, "hang"])
        ran = await ask(task, AskingAgent(f"ask 1; touch /app/done; ask {how} 2"), upstream)
    check_void(ran, Cause.POLICY, "was silent", "3 s")
    assert len(ran.trajectory.exchanges) == 1
    assert server.in_flight == 0


@pytest.mark.usefixtures("short_silence_limit")
async def test_the_built_in_agent_with_a_silent_policy_is_void(write_task, ask: RunTrial):
    task = write_task(test=GRADER, toml=SHORT_TIME)
    turns = (Turn(run="touch /app/done"), Turn(failure="hang"))
    ran = await ask(task, Shell(), ScriptedPolicy(Script(turns=turns)))
    check_void(ran, Cause.POLICY, "was silent")


async def test_a_policy_that_is_silent_for_less_than_half_the_time_is_not_blamed(
    write_task, ask: RunTrial
):
    task = write_task(test=GRADER, toml=SHORT_TIME)
    script = "ask 1; touch /app/done; sleep 2.2; ask late"

    def late(request: ScriptedRequest) -> Turn:
        return Turn(text="Yes.", delay=60 if "late" in request.last else 0)

    ran = await ask(task, AskingAgent(script), ScriptedPolicy(late))
    check_graded(ran, 1.0)
    assert ended(ran) == (Ending.BUDGET, "budget")


async def test_a_slow_stream_is_not_silence(write_task, ask: RunTrial):
    task = write_task(test=GRADER, toml=SHORT_TIME)
    answers = Script(rules=(Rule(when="first", text="Yes."),), otherwise="x" * 2400)
    script = "ask first; touch /app/done; ask --stream second"
    ran = await ask(task, AskingAgent(script), ScriptedPolicy(answers, pace=0.1))
    check_graded(ran, 1.0)
    assert ended(ran) == (Ending.BUDGET, "budget")


async def test_an_answer_after_an_abandoned_request_is_graded(
    write_task, ask: RunTrial, monkeypatch: pytest.MonkeyPatch
):
    task = write_task(test=GRADER, toml="[agent]\ntimeout_sec = 60\n")
    monkeypatch.setattr(policy_session, "MAX_SILENCE", 0.5 / 60)

    def slow(request: ScriptedRequest) -> Turn:
        return Turn(text="Yes.", delay=600 if "slow" in request.last else 0)

    script = 'timeout 2.2 python3 -c "$ASK" slow; ask quick && touch /app/done'
    ran = await ask(task, AskingAgent(script), ScriptedPolicy(slow))
    check_graded(ran, 1.0)
    assert [one.what for one in ran.trajectory.troubles] == ["cancelled"]


async def test_the_steps_of_a_task_share_a_session_and_each_counts_its_turns(
    tmp_path: Path, ask: RunTrial
):
    files: dict[str, str] = {"environment/Dockerfile": HOST}
    for name in ("one", "two"):
        files[f"steps/{name}/instruction.md"] = f"{name}\n"
        files[f"steps/{name}/tests/test.sh"] = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
    toml = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    task = write_task_folder(tmp_path / "tasks/steps", files, toml)
    script = "ask a; [ -e /app/second ] || { touch /app/second; exit; }; ask b; ask c; true"
    ran = await ask(task, AskingAgent(script), ScriptedPolicy(echo), Limits(turns=3))
    check_graded(ran, 1.0)
    assert [(end.turns, end.ending) for end in ran.file.ends.values()] == [
        (1, Ending.SUBMITTED),
        (2, Ending.SUBMITTED),
    ]
    assert len(ran.trajectory.exchanges) == 3
    tokens = [end.tokens for end in ran.file.ends.values()]
    assert tokens == sorted(tokens)

    used = await ask(task, AskingAgent(script), ScriptedPolicy(echo), Limits(turns=1), attempt=2)
    assert [(end.turns, end.ending) for end in used.file.ends.values()] == [
        (1, Ending.SUBMITTED),
        (0, Ending.BUDGET),
    ]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of trajectory writes that succeed before the disk is full."""
    write, room = os.write, [1000]

    def full(descriptor: int, data: bytes) -> int:
        if "trajectory.jsonl" not in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            return write(descriptor, data)
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(trajectory_file.os, "write", full)
    return room


@pytest.mark.parametrize("turns", [0, 1], ids=["at once", "later"])
async def test_a_full_disk_for_trajectories_voids_the_trial(
    write_task, ask: RunTrial, disk: list[int], turns: int
):
    disk[0] = 1 + turns
    script = "touch /app/done; ask 1; ask 2; true"
    ran = await ask(write_task(test=GRADER), AskingAgent(script), ScriptedPolicy(echo))
    check_void(ran, Cause.SANDBOX, "the trajectory cannot be written", "No space left")


async def test_a_trial_cancelled_on_a_full_disk_is_cancelled(
    write_task, ask: RunTrial, disk: list[int], tmp_path: Path
):
    requested = asyncio.Event()

    def answer(_: ScriptedRequest) -> Turn:
        requested.set()
        return Turn(text="Late.", delay=60)

    trial = asyncio.create_task(ask(write_task(), AskingAgent("ask hello"), ScriptedPolicy(answer)))
    await asyncio.wait_for(requested.wait(), 60)
    disk[0] = 0
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert '"cause": "cancelled"' in (tmp_path / "trials/task.1/verdict.json").read_text()
