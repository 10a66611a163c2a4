"""Agents that are programs: run in the sandbox, pointed at the gateway, read at their end.

A program comes from a layer that is mounted read-only; without one it is installed in the
sandbox, where the task's network allows that. How it ends says nothing about the reward: one
that failed after it had worked is graded like any other.
"""

from pathlib import Path

from plimsoll.agents.command_line.adapter import AGENT_HOME, Adapter, Launch
from plimsoll.agents.layer.components import COMPONENTS_ROOT, Component
from plimsoll.agents.layer.layer import AgentLayer
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.core.errors import AgentError, SetUpError
from plimsoll.core.permissions import NetworkMode
from plimsoll.sandboxes.protocol import ExecResult, Mount, Sandbox
from plimsoll.tasks.task import Task

__all__ = ["CommandLineAgent"]

_ANYBODY = 0o777
_NOT_STARTED = {126: "cannot be executed", 127: "is not there"}
"""Exit codes that say that a program, or what it is linked with, could not be started."""
_WRITE = 'umask 077; cat > "$1"'
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


class CommandLineAgent:
    """The agent of an adapter."""

    reference = False
    needs_policy = True
    inside = True

    def __init__(self, adapter: Adapter, layer: Path | None = None) -> None:
        self._adapter = adapter
        self._layer = None if layer is None else AgentLayer(layer, adapter.name, adapter.parts)

    @property
    def name(self) -> str:
        return self._adapter.name

    @property
    def version(self) -> str:
        *_, own = self._adapter.parts
        return own.version if self._layer is None else self._layer.version(own)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return () if self._layer is None else self._layer.mounts(self._adapter.parts)

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        if self._layer is None:
            await self._install(task, sandbox)
            return
        for part in self._adapter.parts:
            if wanted := self._layer.python(part):
                await self._check_python(sandbox, part, wanted)

    async def run(self, assignment: Assignment) -> Outcome:
        access = assignment.policy
        if access is None:
            raise AgentError(f"the agent {self.name} needs a policy: name one with --policy URL")
        launch = self._adapter.launch(access, assignment.instruction)
        await self._prepare_home(assignment, launch)
        done = await assignment.sandbox.exec(
            launch.argv,
            env={**assignment.env, **launch.env},
            user=assignment.user,
            stdin=launch.stdin,
            on_output=assignment.on_output,
        )
        if done.exit_code in _NOT_STARTED:
            raise AgentError(self._no_start(launch, done))
        return self._adapter.outcome(done) or await self._without_words(assignment.sandbox, done)

    async def _without_words(self, sandbox: Sandbox, done: ExecResult) -> Outcome:
        """The outcome of a program that broke off: graded for what it did until then.

        Not where the kernel killed for memory. That says nothing of the policy.
        """
        if done.ok:
            return Outcome(exit_code=0)
        if done.signal is not None and (await sandbox.status()).oom_kills:
            raise AgentError(f"{self.name} was killed for memory")
        return Outcome(detail=done.complaint(), exit_code=done.exit_code)

    async def _prepare_home(self, assignment: Assignment, launch: Launch) -> None:
        """A folder without anything of an earlier step, that the agent's user may write to."""
        sandbox = assignment.sandbox
        await sandbox.empty(AGENT_HOME, mode=_ANYBODY)
        for name, content in launch.files.items():
            argv = ["sh", "-c", _WRITE, "sh", f"{AGENT_HOME}/{name}"]
            done = await sandbox.exec(argv, user=assignment.user, stdin=content)
            if not done.ok:
                raise AgentError(f"{AGENT_HOME}/{name} cannot be written: {done.complaint()}")

    def _no_start(self, launch: Launch, done: ExecResult) -> str:
        program = launch.argv[0]
        why = _NOT_STARTED[done.exit_code or 0]
        return (
            f"{self.name} could not start: {program} {why} in the sandbox ({done.complaint()}); "
            "its program is linked with glibc, and of one kind of machine: use an image that has "
            f"both, or bake it again with plimsoll bake {self.name} --to DIR"
        )

    async def _install(self, task: Task, sandbox: Sandbox) -> None:
        if task.network.mode is not NetworkMode.PUBLIC:
            raise SetUpError(
                f"{self.name} is not in the sandbox, and the task gives no network to install it "
                f"from: plimsoll bake {self.name} --to DIR, then name it with --agent-layer DIR"
            )
        await sandbox.empty(COMPONENTS_ROOT)
        for part in self._adapter.parts:
            done = await sandbox.exec(part.install(part.at))
            if not done.ok:
                raise SetUpError(
                    f"{part.name} {part.version} could not be installed in the sandbox by "
                    f"{part.source}, which {done.complaint()}; "
                    f"plimsoll bake {self.name} --to DIR does it once, outside of it"
                )

    async def _check_python(self, sandbox: Sandbox, part: Component, wanted: str) -> None:
        done = await sandbox.exec(["python3", "-I", "-c", _VERSION])
        there = done.stdout.text.strip() if done.ok else ""
        if there != wanted:
            raise SetUpError(
                f"{part.name} was baked for Python {wanted}, and the sandbox has "
                f"{f'Python {there}' if there else 'no python3'}: "
                f"plimsoll bake {self.name} --python {there or 'X.Y'} --to ANOTHER-DIR"
            )
