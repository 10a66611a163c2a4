"""Agents that use the OpenAI and Anthropic SDKs, inside a sandbox without a network."""

import sys
from pathlib import Path

import anthropic
import pytest
from through_gateway import SCRIPTS, worker

from helpers import check_graded
from parts import need
from plimsoll.agents.command_line.adapter import Launch
from plimsoll.agents.command_line.agent import CommandLineAgent
from plimsoll.agents.layer.layer import Component
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import Backend, ExecResult, Mount, Sandbox
from plimsoll.tasks.task import Task

PACKAGES = Path(anthropic.__file__).parents[1]
"""The site-packages folder with the SDKs."""
AT = "/opt/sdks"


class Sdk:
    """The adapter of an agent that is a Python script."""

    components: tuple[Component, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self._source = (SCRIPTS / f"{name}.py").read_text()

    def launch(self, access: Access, instruction: str) -> Launch:
        env = {
            "OPENAI_BASE_URL": access.openai,
            "OPENAI_API_KEY": access.key,
            "ANTHROPIC_BASE_URL": access.anthropic,
            "ANTHROPIC_API_KEY": access.key,
        }
        return Launch(("python3", "-I", "-c", self._source, AT), env, instruction.encode())

    def outcome(self, done: ExecResult) -> Outcome | None:
        return Outcome(exit_code=done.exit_code) if "finished" in done.stdout.text else None


class SdkAgent(CommandLineAgent):
    """Runs the script with the packages of this host. The sandbox must have the same Python."""

    version = anthropic.__version__
    mounts = (Mount(PACKAGES, AT),)

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        del task
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        done = await sandbox.exec(["python3", "--version"])
        same = done.stdout.text.startswith(f"Python {here}.")
        need("python", None if same else f"the sandbox has no Python {here}, which the SDKs need")


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic_messages"])
async def test_an_agent_made_with_an_sdk_solves_a_task(backend: Backend, tmp_path: Path, name: str):
    worked = await worker(backend, tmp_path)(SdkAgent(Sdk(name)))
    check_graded(worked, 1.0)
    end = worked.file.ends["main"]
    assert (end.ending, end.exit_code, end.turns) == (Ending.SUBMITTED, 0, 4), end
    branches = [exchange.branch for exchange in worked.trajectory.exchanges]
    assert branches == ["start", "extends", "extends", "extends"]
    (sample,) = worked.trajectory.samples()
    assert sample.trained == (0, 1, 2, 3)
