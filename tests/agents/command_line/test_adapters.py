"""Adapters of the command-line agents, and the agent that runs them, without their programs."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from wheel_files import write_wheel

from helpers import HOST, need_several_users, write_task_folder
from parts import need, spec
from plimsoll.agents.command_line.adapter import AGENT_HOME, Adapter, Launch
from plimsoll.agents.command_line.agent import CommandLineAgent
from plimsoll.agents.layer.layer import BakedComponent, Component, write_manifest
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.agents.registry import ADAPTERS, make_agent
from plimsoll.core.endings import Ending
from plimsoll.core.errors import AgentError, SetUpError, UsageError
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.output import Captured
from plimsoll.sandboxes.protocol import Backend, ExecResult, Image, Limits, Sandbox
from plimsoll.tasks.task import Task

ACCESS = Access("http://127.0.0.1:4000/s/abc", "a-secret-key", "policy")
INSTRUCTION = "Mend 'it'; $(touch /tmp/no) \"now\"\n" * 10_000
"""Longer than a command argument may be, with characters that are special to a shell."""


def done(
    stdout: str = "", *, exit_code: int | None = 0, signal: int | None = None, stderr: str = ""
) -> ExecResult:
    out, err = (Captured(text.encode(), b"", len(text.encode())) for text in (stdout, stderr))
    return ExecResult(exit_code, signal, False, out, err, 1.0)


def launch_text(launch: Launch) -> str:
    """The command line, environment and files of a launch, as one text."""
    files = (content.decode() for content in launch.files.values())
    return "\n".join([*launch.argv, *launch.env.values(), *files])


@pytest.mark.parametrize("name", ADAPTERS)
def test_command_lines_contain_neither_key_nor_instruction(name: str):
    launch = ADAPTERS[name].launch(ACCESS, INSTRUCTION)
    assert not [word for word in launch.argv if ACCESS.key in word or "Mend" in word]
    assert not [word for word in launch.env.values() if "Mend" in word]
    assert ACCESS.key in launch_text(launch)
    given = [launch.stdin.decode(), *(content.decode() for content in launch.files.values())]
    assert any(INSTRUCTION in text or json.dumps(INSTRUCTION) in text for text in given)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_agent_uses_its_session_and_its_model(name: str):
    text = launch_text(ADAPTERS[name].launch(ACCESS, "Mend it."))
    base = ACCESS.anthropic if name == "claude-code" else ACCESS.openai
    assert base in text
    assert ACCESS.model in text


LIMIT = "This model's maximum context length is 8 tokens"
OUTPUTS: list[tuple[str, ExecResult, Outcome | None]] = [
    ("claude-code", done('{"type":"result","subtype":"success","stop_reason":"end_turn"}'),
     Outcome(exit_code=0)),
    ("claude-code", done('{"type":"result","subtype":"success","stop_reason":"refusal",'
                         '"result":"No."}'), Outcome(Ending.REFUSED, "No.", 0)),
    ("claude-code", done('{"type":"result","subtype":"success","stop_reason":"refusal",'
                         '"result":"No.\u2028\x85No."}'),
     Outcome(Ending.REFUSED, "No.\u2028\x85No.", 0)),
    ("claude-code", done('{"type":"result","subtype":"error_max_turns","is_error":true}',
                         exit_code=1), Outcome(Ending.BUDGET, "error_max_turns", 1)),
    ("claude-code", done('{"type":"result","subtype":"success","is_error":true,'
                         '"result":"Prompt is too long"}', exit_code=1),
     Outcome(Ending.BUDGET, "exit 1: Prompt is too long", 1)),
    ("claude-code", done('{"type":"assistant"}\n{"type":"res', exit_code=1), None),
    ("codex", done('{"type":"turn.completed","usage":{}}'), Outcome(exit_code=0)),
    ("codex", done('{"type":"turn.failed","error":{"message":"' + LIMIT + '"}}', exit_code=1),
     Outcome(Ending.BUDGET, f"exit 1: {LIMIT}", 1)),
    ("codex", done('{"type":"turn.started"}', exit_code=101), None),
    ("opencode", done('{"type":"step_finish","part":{"reason":"stop"}}'), Outcome(exit_code=0)),
    ("opencode", done('{"type":"step_finish","part":{"reason":"content-filter"}}'),
     Outcome(Ending.REFUSED, exit_code=0)),
    ("opencode", done('{"type":"error","error":{"name":"APIError","data":{"message":"gone"}}}',
                      exit_code=1), Outcome(detail="exit 1: APIError: gone", exit_code=1)),
    ("opencode", done('{"type":"step_finish","part":{"reason":"tool-calls"}}', exit_code=1), None),
    ("qwen-code", done('{"type":"result","subtype":"success"}', exit_code=None, signal=9),
     Outcome()),
    ("qwen-code", done("", exit_code=53),
     Outcome(Ending.BUDGET, "its turn limit is reached", 53)),
    ("qwen-code", done('{"type":"result","subtype":"error_during_execution","is_error":true,'
                       '"error":{"message":"[API Error: 400 no]"}}', exit_code=1),
     Outcome(detail="exit 1: [API Error: 400 no]", exit_code=1)),
    ("mini-swe-agent", done("\nExit:\n\nSaved trajectory to 'x'\n"), Outcome(exit_code=0)),
    ("mini-swe-agent", done("\nExit:\nLimitsExceeded\n"),
     Outcome(Ending.BUDGET, "LimitsExceeded", 0)),
    ("mini-swe-agent", done("\nExit:\nRepeatedFormatError\n"),
     Outcome(detail="RepeatedFormatError", exit_code=0)),
    ("mini-swe-agent", done("", stderr=f"litellm.ContextWindowExceededError: {LIMIT}\n",
                            exit_code=1),
     Outcome(Ending.BUDGET, f"exit 1: litellm.ContextWindowExceededError: {LIMIT}", 1)),
    ("mini-swe-agent", done("System:\n", exit_code=None, signal=15), None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "printed", "expected"), OUTPUTS)
def test_the_last_event_decides_the_outcome(
    name: str, printed: ExecResult, expected: Outcome | None
):
    assert ADAPTERS[name].outcome(printed) == expected


# --- running an agent: a shell script instead of its program -------------------------------------


class Scripted:
    """The adapter of an agent that is a shell script."""

    name = "scripted"

    def __init__(self, *argv: str, components: tuple[Component, ...] = ()) -> None:
        self.components = components
        self._argv = argv if len(argv) > 1 else ("sh", "-c", *argv)

    def launch(self, access: Access, instruction: str) -> Launch:
        env = {"KEY": access.key}
        files = {"config": f"key = {access.key}\n".encode()}
        return Launch(self._argv, env, instruction.encode(), files)

    def outcome(self, done: ExecResult) -> Outcome | None:
        return Outcome(exit_code=done.exit_code) if "finished" in done.stdout.text else None


@pytest.fixture
def task(tmp_path: Path) -> Task:
    files = {"instruction.md": "Mend it.\n", "environment/Dockerfile": HOST, "tests/test.sh": ""}
    return write_task_folder(tmp_path / "task", files, '[environment]\nnetwork_mode="no-network"\n')


def assigned(task: Task, sandbox: Sandbox, user: str | None = None) -> Assignment:
    return Assignment(task.steps[0], sandbox, INSTRUCTION, {}, user, lambda *_: None, ACCESS)


Run = Callable[..., Awaitable[Outcome]]


@pytest.fixture
def run(task: Task, sandbox: Sandbox) -> Run:
    async def run(adapter: Adapter, user: str | None = None) -> Outcome:
        return await CommandLineAgent(adapter).run(assigned(task, sandbox, user))

    return run


async def test_the_instruction_reaches_the_agent_unchanged(run: Run, sandbox: Sandbox):
    await run(Scripted("cat > /tmp/read; echo finished"))
    read = await sandbox.exec(["cat", "/tmp/read"], keep=1 << 20)
    assert read.stdout.text == INSTRUCTION


async def test_a_failure_after_the_last_event_is_ignored(run: Run):
    assert await run(Scripted("echo finished; exit 7")) == Outcome(exit_code=7)


async def test_an_agent_that_crashes_is_graded(run: Run):
    outcome = await run(Scripted("echo no more >&2; exit 7"))
    assert outcome == Outcome(detail="failed (exit 7): no more", exit_code=7)
    outcome = await run(Scripted("kill -9 $$"))
    assert outcome == Outcome(detail="failed (killed by signal 9)")


async def test_an_agent_killed_for_memory_is_not_graded(backend: Backend, image: Image, task: Task):
    made = await backend.create(image, spec(limits=Limits(memory_mb=64)))
    missing = [warning for warning in backend.warnings if "cgroup" in warning]
    need("cgroups", missing[0] if missing else None)
    try:
        with pytest.raises(AgentError, match="ran out of memory"):
            await CommandLineAgent(Scripted("exec tail /dev/zero")).run(assigned(task, made))
    finally:
        await made.close()


async def test_a_missing_program_is_an_error(run: Run):
    with pytest.raises(AgentError, match=r"absent/program does not exist in the sandbox.*bake"):
        await run(Scripted("/opt/plimsoll/agents/absent/program", "--print"))


async def test_an_agent_starts_each_step_with_an_empty_home(run: Run, sandbox: Sandbox):
    await run(Scripted(f"touch {AGENT_HOME}/left; echo finished"))
    await run(Scripted(f"ls -A {AGENT_HOME} > /tmp/seen; echo finished"))
    assert (await sandbox.exec(["cat", "/tmp/seen"])).stdout.text == "config\n"


async def test_only_the_agents_user_reads_the_key(run: Run, sandbox: Sandbox):
    need_several_users()
    outcome = await run(
        Scripted(f"grep -q key {AGENT_HOME}/config && echo finished"), user="nobody"
    )
    assert outcome.exit_code == 0
    mode = await sandbox.exec(["stat", "-c", "%U %a", f"{AGENT_HOME}/config"])
    assert mode.stdout.text == "nobody 600\n"


async def test_the_users_home_is_not_changed(run: Run, sandbox: Sandbox):
    await run(Scripted('echo "$HOME" > /tmp/home; echo finished'))
    usual = await sandbox.exec('echo "$HOME"')
    assert (await sandbox.exec(["cat", "/tmp/home"])).stdout.text == usual.stdout.text


# --- sources of the programs ---------------------------------------------------------------------

COMPONENT = Component("tool", "1.0", "pip", ("tool=={version}",), for_python=True)


def baked(folder: Path, python: str) -> Path:
    (folder / "tool").mkdir(parents=True)
    write_manifest(folder, {"tool": BakedComponent("1.0", ("tool==1.0",), "tree:0", 0, python)})
    return folder


async def test_without_a_layer_and_a_network_the_error_says_how_to_bake(
    task: Task, sandbox: Sandbox
):
    with pytest.raises(SetUpError, match=r"plimsoll bake codex --to DIR.*--agent-layer DIR"):
        await make_agent("codex").set_up(task, sandbox)


async def test_without_a_layer_a_public_network_is_used_to_install(
    sandbox: Sandbox, tmp_path: Path
):
    has_pip = await sandbox.exec(["python3", "-m", "pip", "--version"])
    need("pip", None if has_pip.ok else "the sandbox's Python has no pip")
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "1.0")
    await sandbox.upload(wheels, "/tmp/wheels")
    (tmp_path / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /tmp/wheels\n")
    await sandbox.upload(tmp_path / "pip.conf", "/etc/pip.conf")
    files = {"instruction.md": "", "environment/Dockerfile": HOST, "tests/test.sh": ""}
    task = write_task_folder(tmp_path / "open", files, '[environment]\nnetwork_mode="public"\n')
    await CommandLineAgent(Scripted("", components=(COMPONENT,))).set_up(task, sandbox)
    assert (await sandbox.exec(["test", "-e", f"{COMPONENT.path}/tool.py"])).ok
    absent = Component("absent", "9.9", "pip", ("absent=={version}",))
    with pytest.raises(SetUpError, match=r"absent 9\.9 could not be installed in the sandbox"):
        await CommandLineAgent(Scripted("", components=(absent,))).set_up(task, sandbox)


async def test_packages_for_another_python_are_refused_at_set_up(
    task: Task, sandbox: Sandbox, tmp_path: Path
):
    agent = CommandLineAgent(
        Scripted("", components=(COMPONENT,)), baked(tmp_path / "layer", "2.7")
    )
    with pytest.raises(SetUpError, match=r"tool was baked for Python 2\.7, and the sandbox has Py"):
        await agent.set_up(task, sandbox)


def test_a_layer_is_mounted_under_its_digest(tmp_path: Path):
    agent = CommandLineAgent(
        Scripted("", components=(COMPONENT,)), baked(tmp_path / "layer", "3.11")
    )
    (mount,) = agent.mounts
    assert mount.source == tmp_path / "layer/tool"
    assert (mount.target, mount.key) == ("/opt/plimsoll/agents/tool", "tree:0")


def test_a_layer_without_the_agent_says_how_to_bake_it(tmp_path: Path):
    with pytest.raises(UsageError, match=r"has no codex: plimsoll bake codex --to"):
        make_agent("codex", layer=tmp_path)
    (tmp_path / "agents.json").write_text("[")
    with pytest.raises(UsageError, match=r"agents\.json is not the manifest of a layer"):
        make_agent("codex", layer=tmp_path)
