"""The real agents, each on an example task, through the gateway, without a network."""

import os
from pathlib import Path

import pytest
from through_gateway import SCRIPT, worker

from helpers import check_graded, check_void, need_several_users
from parts import need
from plimsoll.agents.protocol import Agent
from plimsoll.agents.registry import ADAPTERS, make_agent
from plimsoll.core.endings import Ending
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.protocol import Backend
from plimsoll.trials.verdicts import Cause, Graded
from policy_agents import RunTrial

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def layer() -> Path:
    """The agent layer that `.ci/agents` baked."""
    folder = os.environ.get("PLIMSOLL_TEST_AGENTS")
    missing = "PLIMSOLL_TEST_AGENTS names no folder; .ci/agents makes one and prints it"
    need("agents", None if folder else missing)
    return Path(str(folder))


@pytest.fixture(params=ADAPTERS)
def agent(request: pytest.FixtureRequest, layer: Path) -> Agent:
    """Each agent in turn."""
    return make_agent(request.param, layer=layer)


@pytest.fixture
def work(backend: Backend, tmp_path: Path) -> RunTrial:
    return worker(backend, tmp_path)


async def test_an_agent_solves_a_task_and_every_token_is_kept(work: RunTrial, agent: Agent):
    worked = await work(agent)
    check_graded(worked, 1.0)
    end = worked.file.ends["main"]
    assert (end.ending, end.exit_code, end.turns) == (Ending.SUBMITTED, 0, 4)
    trajectory = worked.trajectory
    assert trajectory.complete
    assert not trajectory.troubles
    branches = [exchange.branch for exchange in trajectory.exchanges]
    assert branches == ["start", "extends", "extends", "extends"]
    assert not any(exchange.untrainable for exchange in trajectory.exchanges)
    (sample,) = trajectory.samples()
    assert sample.trained == (0, 1, 2, 3)
    assert sum(sample.mask) == sum(each.answer_tokens or 0 for each in trajectory.exchanges)


async def test_an_agent_without_turns_left_ends_and_is_graded(work: RunTrial, agent: Agent):
    worked = await work(agent, limits=Limits(turns=2))
    check_graded(worked, 1.0)
    assert isinstance(worked.verdict, Graded)
    assert worked.verdict.ending is Ending.BUDGET
    assert len(worked.trajectory.exchanges) == 2


@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode", "qwen-code"])
async def test_a_failing_policy_makes_the_trial_void(work: RunTrial, layer: Path, name: str):
    script = Script(turns=(*SCRIPT.turns[:2], Turn(failure=500)))
    worked = await work(make_agent(name, layer=layer), script)
    check_void(worked, Cause.POLICY)
    assert len(worked.trajectory.exchanges) == 2
    troubles = [trouble.what for trouble in worked.trajectory.troubles]
    assert troubles.count("upstream") <= 10  # the agent has its own retries


@pytest.mark.parametrize("name", ["claude-code", "codex"])
async def test_an_agent_works_as_an_ordinary_user_too(work: RunTrial, layer: Path, name: str):
    need_several_users()
    script = Script(turns=(Turn(run="id -un > /tmp/who; cat /tmp/who"), Turn(text="Done.")))
    worked = await work(make_agent(name, layer=layer), script, user="nobody")
    check_graded(worked, 0.0)
    messages = worked.trajectory.messages_of(worked.trajectory.exchanges[-1])
    assert "nobody" in messages[-1].text


async def test_an_answer_that_claude_code_rewrites_is_trained_as_it_was_generated(
    work: RunTrial, layer: Path
):
    """Claude Code removes a `cd` to the current folder from a command that it sends back."""
    script = Script(turns=(Turn(run="cd /app && ls"), Turn(run="ls"), Turn(text="Done.")))
    trajectory = (await work(make_agent("claude-code", layer=layer), script)).trajectory
    first, second = trajectory.samples()
    assert first.trained == (0,)
    assert "cd /app" in trajectory.answer_of(trajectory.exchanges[0]).calls[0].arguments
    assert second.trained == (1, 2)
    assert second.branch == "rewritten"


@pytest.fixture(params=["docker_daemon", "tls_daemon"])
def daemon_options(request: pytest.FixtureRequest) -> DockerOptions:
    """A daemon on this host, which can mount the layer, and a remote one, which cannot."""
    found = request.getfixturevalue(request.param)
    if isinstance(found, str):
        return DockerOptions(host=found)
    return DockerOptions(host=found.url, certificates=found.certificates)


@pytest.mark.parametrize("name", ["claude-code", "codex"])
async def test_an_agent_works_in_a_container_of_a_local_or_remote_daemon(
    daemon_options: DockerOptions, layer: Path, tmp_path: Path, name: str
):
    async with DockerBackend(daemon_options) as backend:
        worked = await worker(backend, tmp_path)(make_agent(name, layer=layer))
    check_graded(worked, 1.0)
    trajectory = worked.trajectory
    assert [exchange.branch for exchange in trajectory.exchanges] == ["start"] + ["extends"] * 3
    assert not any(exchange.untrainable for exchange in trajectory.exchanges)
    assert not trajectory.troubles
