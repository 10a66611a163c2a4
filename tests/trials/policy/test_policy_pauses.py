"""Pauses of the policy for new weights do not count towards the agent's time."""

import asyncio
from pathlib import Path

import pytest

from helpers import check_graded, check_void
from plimsoll.agents.shell import Shell
from plimsoll.core.endings import Ending
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.sandboxes.protocol import Backend
from plimsoll.trials import policy_session
from plimsoll.trials.verdicts import Cause
from policy_agents import AskingAgent, RunTrial, trial_with

GRADER = "([ -e /app/done ] && echo 1 || echo 0) > /logs/verifier/reward.txt"
SHORT_TIME = "[agent]\ntimeout_sec = 4\n"
DONE = Script(turns=(Turn(run="touch /app/done"), Turn(submit=True)))


@pytest.fixture
def ask(backend: Backend, tmp_path: Path) -> RunTrial:
    return trial_with(backend, tmp_path)


async def pause_for(gate: Gate, seconds: float, *, drains: bool) -> None:
    """Pause as the servers of a training do: they hold the requests."""
    await asyncio.sleep(0)
    gate.pauses.begin(drains=drains)
    await asyncio.sleep(seconds)
    gate.pauses.end()


@pytest.mark.every_backend
@pytest.mark.parametrize(
    "agent", [Shell(), AskingAgent("ask 1; touch /app/done")], ids=lambda a: a.name
)
async def test_a_pause_longer_than_the_time_limit_does_not_count(
    write_task, ask: RunTrial, agent: Shell | AskingAgent
):
    gate = Gate(ScriptedPolicy(DONE if isinstance(agent, Shell) else lambda _: "Yes."))
    await gate.pause()
    opened = asyncio.get_running_loop().call_later(6.0, gate.resume)
    ran = await ask(write_task(test=GRADER, toml=SHORT_TIME), agent, gate)
    opened.cancel()
    check_graded(ran, 1.0)
    assert ran.verdict.ending is Ending.SUBMITTED
    assert 4.0 < ran.phases["paused"] <= ran.phases["agent"]
    assert ran.file.phases["paused"] == ran.phases["paused"]


async def test_a_slow_agent_still_times_out(write_task, ask: RunTrial):
    gate = Gate(ScriptedPolicy(lambda _: "Yes."))
    pausing = asyncio.create_task(pause_for(gate, 2.0, drains=False))
    script = "ask 1; touch /app/done; sleep 60"
    ran = await ask(write_task(test=GRADER, toml=SHORT_TIME), AskingAgent(script), gate)
    await pausing
    check_graded(ran, 1.0)
    assert ran.verdict.ending is Ending.BUDGET
    assert ran.phases["agent"] - ran.phases.get("paused", 0.0) >= 4.0


async def test_a_pause_that_does_not_end_makes_the_trial_void(write_task, ask: RunTrial):
    gate = Gate(ScriptedPolicy(DONE))
    await gate.pause()
    task = write_task(test=GRADER, toml=SHORT_TIME)
    ran = await ask(task, Shell(), gate, longest_pause=0.3)
    check_void(ran, Cause.POLICY, "paused for new weights", "more than 0.3 s")


async def test_a_pause_does_not_count_as_silence_of_the_policy(
    write_task, ask: RunTrial, monkeypatch: pytest.MonkeyPatch
):
    # On a busy machine most of the short time limit may pass before the late request.
    monkeypatch.setattr(policy_session, "MAX_SILENCE", 0.2)

    def hangs(request: ScriptedRequest) -> Turn:
        return Turn(text="Yes.", delay=60 if "late" in request.last else 0)

    gate = Gate(ScriptedPolicy(hangs))
    pausing = asyncio.create_task(pause_for(gate, 1.0, drains=False))
    script = "ask 1; touch /app/done; ask late"
    ran = await ask(write_task(test=GRADER, toml=SHORT_TIME), AskingAgent(script), gate)
    await pausing
    check_void(ran, Cause.POLICY, "was silent for", "of the agent's 4 s")


async def test_a_draining_policy_answers_on_the_time_of_the_agent(write_task, ask: RunTrial):
    """Otherwise an endless answer and the update would wait for each other."""
    draining: list[asyncio.Task[None]] = []

    def say(request: ScriptedRequest) -> str:
        if "second" not in request.last:
            return "Yes."
        draining.append(asyncio.create_task(gate.pause(drain=True)))
        return "x" * 24_000

    gate = Gate(ScriptedPolicy(say, pace=0.1))
    script = "ask first; touch /app/done; ask --stream second"
    ran = await ask(write_task(test=GRADER, toml=SHORT_TIME), AskingAgent(script), gate)
    check_graded(ran, 1.0)
    assert ran.verdict.ending is Ending.BUDGET
    await asyncio.wait_for(draining[0], 30)
    assert gate.in_flight == 0


async def test_an_agent_that_gives_up_while_the_policy_is_paused_is_not_graded(
    write_task, ask: RunTrial
):
    pausing: list[asyncio.Task[None]] = []

    def say(_: ScriptedRequest) -> str:
        pausing.append(asyncio.create_task(gate.pause()))
        return "Yes."

    gate = Gate(ScriptedPolicy(say))
    script = 'ask 1; timeout 1 python3 -c "$ASK" 2; true'
    ran = await ask(write_task(toml="[agent]\ntimeout_sec = 60\n"), AskingAgent(script), gate)
    check_void(ran, Cause.POLICY, "gave up while the policy was paused")
