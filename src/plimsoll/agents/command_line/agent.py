"""The agent of an adapter: runs its program in the sandbox, connected to the gateway.

The program comes from an agent layer, mounted read-only. Without a layer it is installed in the
sandbox, if the task's network allows that. The exit of the program says nothing about the reward:
a program that failed after some work is graded like any other.
"""

from pathlib import Path

from plimsoll.agents.command_line.adapter import AGENT_HOME, Adapter, Launch
from plimsoll.agents.layer.layer import COMPONENTS_ROOT, AgentLayer, Component
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.core.errors import AgentError, SetUpError
from plimsoll.core.permissions import NetworkMode
from plimsoll.sandboxes.protocol import ExecResult, Mount, Sandbox
from plimsoll.tasks.task import Task

__all__ = ["CommandLineAgent"]

_WORLD_WRITABLE = 0o777
_NOT_STARTED = {126: "cannot be executed", 127: "does not exist"}
"""Exit codes of a program that could not be started, or whose libraries are missing."""
_WRITE = 'umask 077; cat > "$1"'
_PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


class CommandLineAgent:
    """A command-line agent."""

    reference = False
    needs_policy = True
    inside = True

    def __init__(self, adapter: Adapter, layer: Path | None = None) -> None:
        self._adapter = adapter
        self._layer = None if layer is None else AgentLayer(layer, adapter.name, adapter.components)

    @property
    def name(self) -> str:
        return self._adapter.name

    @property
    def version(self) -> str:
        *_, own = self._adapter.components
        return own.version if self._layer is None else self._layer.version(own)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return () if self._layer is None else self._layer.mounts(self._adapter.components)

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        if self._layer is None:
            await self._install(task, sandbox)
            return
        for component in self._adapter.components:
            if baked_for := self._layer.python(component):
                await self._check_python(sandbox, component, baked_for)

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
            raise AgentError(self._start_failure(launch, done))
        return self._adapter.outcome(done) or await self._unreported_outcome(
            assignment.sandbox, done
        )

    async def _unreported_outcome(self, sandbox: Sandbox, done: ExecResult) -> Outcome:
        """The outcome of a program that ended without a report: its work so far is graded.

        Raises `AgentError` if the kernel killed a process for lack of memory, which says nothing
        about the policy.
        """
        if done.ok:
            return Outcome(exit_code=0)
        if done.signal is not None and (await sandbox.status()).oom_kills:
            raise AgentError(f"{self.name} was killed: the sandbox ran out of memory")
        return Outcome(detail=done.complaint(), exit_code=done.exit_code)

    async def _prepare_home(self, assignment: Assignment, launch: Launch) -> None:
        """Create an empty home, writable for the agent's user, without files of an earlier step."""
        sandbox = assignment.sandbox
        await sandbox.empty(AGENT_HOME, mode=_WORLD_WRITABLE)
        for name, content in launch.files.items():
            argv = ["sh", "-c", _WRITE, "sh", f"{AGENT_HOME}/{name}"]
            done = await sandbox.exec(argv, user=assignment.user, stdin=content)
            if not done.ok:
                raise AgentError(f"{AGENT_HOME}/{name} cannot be written: {done.complaint()}")

    def _start_failure(self, launch: Launch, done: ExecResult) -> str:
        program = launch.argv[0]
        why = _NOT_STARTED[done.exit_code or 0]
        return (
            f"{self.name} could not start: {program} {why} in the sandbox ({done.complaint()}); "
            "its program needs glibc and is built for one architecture: use an image with both, "
            f"or bake it again with plimsoll bake {self.name} --to DIR"
        )

    async def _install(self, task: Task, sandbox: Sandbox) -> None:
        if task.network.mode is not NetworkMode.PUBLIC:
            raise SetUpError(
                f"{self.name} is not in the sandbox, and the task has no network to install it: "
                f"run plimsoll bake {self.name} --to DIR, then use --agent-layer DIR"
            )
        await sandbox.empty(COMPONENTS_ROOT)
        for component in self._adapter.components:
            done = await sandbox.exec(component.install_command(component.path))
            if not done.ok:
                raise SetUpError(
                    f"{component.name} {component.version} could not be installed in the sandbox: "
                    f"{component.source} {done.complaint()}; "
                    f"plimsoll bake {self.name} --to DIR installs it once, on the host"
                )

    async def _check_python(self, sandbox: Sandbox, component: Component, baked_for: str) -> None:
        done = await sandbox.exec(["python3", "-I", "-c", _PRINT_VERSION])
        found = done.stdout.text.strip() if done.ok else ""
        if found != baked_for:
            raise SetUpError(
                f"{component.name} was baked for Python {baked_for}, and the sandbox has "
                f"{f'Python {found}' if found else 'no python3'}: "
                f"plimsoll bake {self.name} --python {found or 'X.Y'} --to ANOTHER-DIR"
            )
