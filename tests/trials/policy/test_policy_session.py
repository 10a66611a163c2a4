"""Trials with a policy: its failures never lead to a reward."""

import asyncio
from pathlib import Path

import pytest

from helpers import check_graded, check_void
from plimsoll.agents.shell import Shell
from plimsoll.core.endings import Ending
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.openai_server import Timeouts
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures, serve_script
from plimsoll.sandboxes.protocol import Backend
from plimsoll.trajectories.trajectory_file import read_trajectory
from plimsoll.trials.policy_session import PolicyAccess
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Cause, Graded
from policy_agents import AskingAgent, RunTrial, over_http, trial_with

GRADER = "([ -e /app/done ] && echo 1 || echo 0) > /logs/verifier/reward.txt"
SHORT = Timeouts(connect=1.0, first=0.3, between=0.3, total=0.6)
WORKS = Script(turns=(Turn(run="touch /app/done"), Turn(submit=True)))


@pytest.fixture
def ask(backend: Backend, tmp_path: Path) -> RunTrial:
    return trial_with(backend, tmp_path)


def echo(request: ScriptedRequest) -> str:
    return f"You said {request.last}."


@pytest.mark.every_backend
async def test_an_agent_in_a_sandbox_without_a_network_uses_the_policy_and_is_graded(
    write_task, ask: RunTrial
):
    script = "ask hello && ask --stream again && touch /app/done"
    ran = await ask(write_task(test=GRADER), AskingAgent(script), ScriptedPolicy(echo))
    check_graded(ran, 1.0)
    assert "You said hello." in ran.read("agent/stdout.txt")
    end = ran.file.ends["main"]
    assert (end.ending, end.turns, end.exit_code) == (Ending.SUBMITTED, 2, 0)
    assert end.tokens == sum(
        (one.prompt_tokens or 0) + (one.answer_tokens or 0) for one in ran.trajectory.exchanges
    )


@pytest.mark.parametrize(
    ("toml", "word"),
    [
        (
            '[[environment.mcp_servers]]\nname = "tools"\nurl = "http://localhost:1"\n',
            "mcp_servers",
        ),
        ('[environment]\nskills_dir = "/skills"\n', "skills_dir"),
    ],
)
async def test_unsupported_settings_are_void_for_agents_and_graded_for_the_oracle(
    write_task, ask: RunTrial, run, toml: str, word: str
):
    task = write_task(test=GRADER, toml=toml)
    check_void(await ask(task, AskingAgent("ask hello"), ScriptedPolicy(echo)), Cause.SANDBOX, word)
    check_graded(await run(task, "touch /app/done"), 1.0)


async def test_a_trajectory_has_its_trial_and_ending(write_task, ask: RunTrial):
    ran = await ask(write_task(), AskingAgent("ask hello"), ScriptedPolicy(echo), attempt=3)
    assert ran.trajectory.opened.about == {
        "run": "test",
        "task": "task",
        "attempt": "3",
        "trial": ran.file.trial,
        "agent": "asking",
        "agent_version": "1.2",
        "model": "tiny",
    }
    assert ran.trajectory.closed is not None
    assert ran.trajectory.closed.ending == "submitted"


FATES = [429, 500, 503, "drop", "hang", "cut", "stall", "garbage", "half-event", "bad-call"]


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("how", ["", "--stream"], ids=["whole", "stream"])
async def test_a_final_failure_of_the_policy_is_void_whatever_the_agent_reports(
    write_task, ask: RunTrial, fate, how: str
):
    task = write_task(test=GRADER)
    async with serve_script(echo) as server, over_http(server, timeouts=SHORT) as upstream:
        server.faults.extend([fate] * 20)
        script = f"touch /app/done; ask {how} hello; exit 0"
        ran = await ask(task, AskingAgent(script), upstream)
    check_void(ran, Cause.POLICY)
    assert server.requests
    trajectory = ran.trajectory
    assert trajectory.closed is not None
    assert trajectory.closed.ending == "void"
    assert ran.verdict.reason == trajectory.closed.detail
    assert trajectory.troubles


async def test_an_agent_that_fails_after_a_failure_of_the_policy_blames_the_policy(
    write_task, ask: RunTrial
):
    script = "touch /app/done; ask hello"
    async with serve_script(echo) as server, over_http(server) as upstream:
        server.faults.extend([500] * 9)
        ran = await ask(write_task(test=GRADER), AskingAgent(script, gives_up=True), upstream)
    check_void(ran, Cause.POLICY, "500")


async def test_an_agent_that_fails_by_itself_does_not_blame_the_policy(write_task, ask: RunTrial):
    agent = AskingAgent("ask hello; exit 7", gives_up=True)
    check_void(await ask(write_task(), agent, ScriptedPolicy(echo)), Cause.SANDBOX, "exit 7")


async def test_a_failure_that_the_agent_survived_does_not_void(write_task, ask: RunTrial):
    script = "ask first; ask second && touch /app/done"
    async with serve_script(echo) as server, over_http(server) as upstream:
        server.faults.append(500)
        ran = await ask(write_task(test=GRADER), AskingAgent(script), upstream)
    check_graded(ran, 1.0)
    assert [one.what for one in ran.trajectory.troubles] == ["upstream"]
    assert ran.file.ends["main"].turns == 1


@pytest.mark.every_backend
async def test_a_failure_after_an_answer_still_voids(write_task, ask: RunTrial):
    script = "ask first && touch /app/done; ask second; true"
    async with serve_script(echo) as server, over_http(server) as upstream:
        server.faults.extend([None, 500])
        ran = await ask(write_task(test=GRADER), AskingAgent(script), upstream)
    check_void(ran, Cause.POLICY, "500")
    assert len(ran.trajectory.exchanges) == 1


async def test_the_built_in_agent_is_void_if_the_policy_fails(write_task, ask: RunTrial):
    turns = (Turn(run="touch /app/done"), Turn(failure=503))
    async with serve_script(Script(turns=turns)) as server, over_http(server) as upstream:
        ran = await ask(write_task(test=GRADER), Shell(), upstream)
    check_void(ran, Cause.POLICY, "503")
    assert len(ran.trajectory.exchanges) == 1


async def test_a_server_that_rejects_all_requests_blames_the_policy(write_task, ask: RunTrial):
    async with serve_script(echo) as server, over_http(server) as upstream:
        server.faults.extend([400] * 3)
        ran = await ask(write_task(test=GRADER), AskingAgent("ask hello; true"), upstream)
    check_void(ran, Cause.POLICY, "refused", "as the script says")


async def test_a_first_request_beyond_the_context_voids_the_trial(write_task, ask: RunTrial):
    offers = ServerFeatures(context=5)
    async with serve_script(echo, offers) as server, over_http(server) as upstream:
        ran = await ask(write_task(test=GRADER), AskingAgent("ask hello; true"), upstream)
    check_void(ran, Cause.POLICY, "maximum context length")


async def test_an_agent_without_requests_is_void_with_its_ending(write_task, ask: RunTrial):
    ran = await ask(write_task(test=GRADER), AskingAgent("touch /app/done"), ScriptedPolicy(echo))
    check_void(ran, Cause.SANDBOX, "asking", "no answer")


async def test_an_agent_without_requests_that_times_out_is_void(write_task, ask: RunTrial):
    task = write_task(test=GRADER, toml="[agent]\ntimeout_sec = 0.5\n")
    ran = await ask(task, AskingAgent("touch /app/done; sleep 60"), ScriptedPolicy(echo))
    check_void(ran, Cause.SANDBOX, "no answer", "0.5 s")


async def test_a_refusal_is_graded_and_recorded_in_the_trajectory(write_task, ask: RunTrial):
    script = Script(turns=(Turn(text="No.", finish="content_filter"),))
    ran = await ask(write_task(test=GRADER), Shell(), ScriptedPolicy(script))
    check_graded(ran, 0.0)
    assert isinstance(ran.verdict, Graded)
    assert ran.verdict.ending is Ending.REFUSED
    assert ran.trajectory.closed is not None
    assert ran.trajectory.closed.ending == "refused"


async def test_a_void_grader_keeps_the_ending_of_the_agent_in_the_trajectory(
    write_task, ask: RunTrial
):
    ran = await ask(write_task(test="true"), Shell(), ScriptedPolicy(WORKS))
    check_void(ran, Cause.GRADER)
    assert ran.trajectory.closed is not None
    assert ran.trajectory.closed.ending == "submitted"


async def test_an_agent_that_needs_a_policy_is_void_without_one(write_task, run):
    ran = await run(write_task(), Shell())
    check_void(ran, Cause.SANDBOX, "needs a policy")


@pytest.mark.every_backend
async def test_a_cancelled_trial_closes_its_trajectory(write_task, backend: Backend, tmp_path):
    requested = asyncio.Event()

    def answer(_: ScriptedRequest) -> Turn:
        requested.set()
        return Turn(text="Late.", delay=60)

    async with Gateway(ScriptedPolicy(answer)) as gateway:
        trial = asyncio.create_task(
            run_trial(
                write_task(),
                attempt=1,
                agent=AskingAgent("ask hello"),
                backend=backend,
                run="test",
                directory=tmp_path / "trial",
                policy=PolicyAccess(gateway, Limits(), tmp_path / "blobs"),
            )
        )
        await asyncio.wait_for(requested.wait(), 60)
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial
        assert not len(gateway.sessions)
    trajectory = read_trajectory(tmp_path / "trial/trajectory.jsonl.zst")
    assert trajectory.complete
    assert trajectory.closed is not None
    assert trajectory.closed.ending == "cancelled"
    assert '"cause": "cancelled"' in (tmp_path / "trial/verdict.json").read_text()
