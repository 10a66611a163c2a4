"""Trials of agents that ask a scripted policy, through a gateway, in a sandbox without network."""

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from helpers import Ran
from plimsoll.agents.protocol import Agent
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.script import Script, load_script
from plimsoll.gateway.upstreams.scripted import Scripted
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.loader import load_task
from plimsoll.trajectories.reader import Trajectory, read_trajectory
from plimsoll.trials.policy import Policy
from plimsoll.trials.trial import run_trial

__all__ = ["SCRIPT", "SCRIPTS", "Work", "Worked", "worker"]

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = load_script(SCRIPTS / "off-by-one.toml")
TASK = Path(__file__).parents[2] / "examples/tasks/off-by-one"
MEMORY = 2048
"""MB: agents in JavaScript take more than the task itself is given."""


@dataclass(frozen=True, slots=True)
class Worked(Ran):
    """A trial of an agent that asked the policy."""

    @property
    def trajectory(self) -> Trajectory:
        return read_trajectory(self.folder / "trajectory.jsonl.zst")


Work = Callable[..., Awaitable[Worked]]


def worker(backend: Backend, folder: Path) -> Work:
    """Runs a trial of an agent on the task `off-by-one`, with a policy that follows a script."""

    async def work(
        agent: Agent, script: Script = SCRIPT, *, limits: Limits | None = None, user: str = "root"
    ) -> Worked:
        task = folder / TASK.name
        shutil.copytree(TASK, task)
        file = task / "task.toml"
        text = file.read_text().replace("memory_mb = 512", f"memory_mb = {MEMORY}")
        file.write_text(text.replace("[agent]\n", f'[agent]\nuser = "{user}"\n'))
        async with Gateway(Scripted(script)) as gateway:
            result = await run_trial(
                load_task(task),
                attempt=1,
                agent=agent,
                backend=backend,
                run="test",
                directory=folder / "trial",
                policy=Policy(gateway, limits or Limits(), folder / "blobs"),
            )
        return Worked(result.verdict, folder / "trial", result.phases)

    return work
