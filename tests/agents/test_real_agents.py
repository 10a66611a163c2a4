"""The real agents, each on an example task, through the gateway, without a network."""

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import Ran, check_graded, check_void
from parts import need
from plimsoll.agents.registry import ADAPTERS, make_agent
from plimsoll.core.endings import Ending
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.script import Script, Turn, load_script
from plimsoll.gateway.upstreams.scripted import Scripted
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.loader import load_task
from plimsoll.tasks.task import Task
from plimsoll.trajectories.reader import Trajectory, read_trajectory
from plimsoll.trials.policy import Policy
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Cause, Graded

HERE = Path(__file__).parent
TASK = HERE.parents[1] / "examples/tasks/off-by-one"
SCRIPT = HERE / "scripts/off-by-one.toml"
MEMORY = 2048
"""MB: agents in JavaScript take more than the task itself is given."""


@pytest.fixture(scope="session")
def layer() -> Path:
    """The agents, as `.ci/agents` has baked them."""
    folder = os.environ.get("PLIMSOLL_TEST_AGENTS")
    missing = "PLIMSOLL_TEST_AGENTS names no folder; .ci/agents makes one and prints it"
    need("agents", None if folder else missing)
    return Path(str(folder))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    folder = tmp_path / TASK.name
    shutil.copytree(TASK, folder)
    file = folder / "task.toml"
    file.write_text(file.read_text().replace("memory_mb = 512", f"memory_mb = {MEMORY}"))
    return load_task(folder)


@dataclass(frozen=True, slots=True)
class Worked(Ran):
    """A trial of an agent that asked the policy."""

    @property
    def trajectory(self) -> Trajectory:
        return read_trajectory(self.folder / "trajectory.jsonl.zst")


Work = Callable[..., Awaitable[Worked]]


@pytest.fixture
async def work(backend: Backend, layer: Path, task: Task, tmp_path: Path) -> AsyncIterator[Work]:
    """Runs a trial of an agent with a policy that says what a script says."""

    async def work(agent: str, script: Script, limits: Limits | None = None) -> Worked:
        async with Gateway(Scripted(script)) as gateway:
            result = await run_trial(
                task,
                attempt=1,
                agent=make_agent(agent, layer=layer),
                backend=backend,
                run="test",
                directory=tmp_path / "trial",
                policy=Policy(gateway, limits or Limits(), tmp_path / "blobs"),
            )
        return Worked(result.verdict, tmp_path / "trial", result.phases)

    yield work


@pytest.mark.parametrize("agent", ADAPTERS)
async def test_an_agent_solves_a_task_and_every_token_is_kept(work: Work, agent: str):
    worked = await work(agent, load_script(SCRIPT))
    check_graded(worked, 1.0)
    end = worked.file.ends["main"]
    assert (end.ending, end.exit_code, end.turns) == (Ending.SUBMITTED, 0, 4)
    trajectory = worked.trajectory
    assert trajectory.complete
    assert not trajectory.troubles
    first, *others = trajectory.exchanges
    assert first.branch == "start"
    assert [each.branch for each in others] == ["extends"] * 3
    assert not any(each.untrainable for each in trajectory.exchanges)
    (sample,) = trajectory.branches()
    assert sample.trained == (0, 1, 2, 3)
    assert sum(sample.mask) == sum(each.answer_tokens or 0 for each in trajectory.exchanges)


@pytest.mark.parametrize("agent", ADAPTERS)
async def test_used_up_turns_end_an_agent_and_what_it_did_is_graded(work: Work, agent: str):
    worked = await work(agent, load_script(SCRIPT), Limits(turns=2))
    check_graded(worked, 1.0)
    assert isinstance(worked.verdict, Graded)
    assert worked.verdict.ending is Ending.BUDGET
    assert len(worked.trajectory.exchanges) == 2


@pytest.mark.parametrize("agent", ADAPTERS)
async def test_a_policy_that_fails_makes_the_trial_void_and_never_a_reward(work: Work, agent: str):
    turns = load_script(SCRIPT).turns[:2]
    worked = await work(agent, Script(turns=(*turns, Turn(failure=500))))
    check_void(worked, Cause.POLICY)
    assert len(worked.trajectory.exchanges) == 2
