"""Trials of agents with a scripted policy, through a gateway, in a sandbox without a network."""

import shutil
from pathlib import Path

from plimsoll.agents.protocol import Agent
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import Script, load_script
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.loader import load_task
from policy_agents import PolicyTrial, RunTrial, trial_with

__all__ = ["SCRIPT", "SCRIPTS", "worker"]

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = load_script(SCRIPTS / "off-by-one.toml")
TASK = Path(__file__).parents[2] / "examples/tasks/off-by-one"
MEMORY = 2048
"""In MB. JavaScript agents need more than the limit of the task."""


def worker(backend: Backend, folder: Path) -> RunTrial:
    """A function that runs a trial of an agent on the task `off-by-one` with a scripted policy."""

    async def work(
        agent: Agent, script: Script = SCRIPT, *, limits: Limits | None = None, user: str = "root"
    ) -> PolicyTrial:
        task = folder / TASK.name
        shutil.copytree(TASK, task)
        file = task / "task.toml"
        text = file.read_text().replace("memory_mb = 512", f"memory_mb = {MEMORY}")
        file.write_text(text.replace("[agent]\n", f'[agent]\nuser = "{user}"\n'))
        trial = trial_with(backend, folder)
        return await trial(load_task(task), agent, ScriptedPolicy(script), limits)

    return work
