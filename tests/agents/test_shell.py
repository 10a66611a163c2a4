"""The built-in shell agent, with a real gateway, a scripted policy and a real sandbox."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from helpers import HOST, long_time, processes_with, write_task_folder
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.agents.shell import Shell
from plimsoll.core.endings import Ending
from plimsoll.core.errors import AgentError
from plimsoll.gateway.access import Access
from plimsoll.gateway.completions import Answer, Request
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.protocol import CallContext
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest
from plimsoll.gateway.upstreams.scripted.script import CallSpec, Script, Turn
from plimsoll.sandboxes.protocol import Sandbox
from plimsoll.testing.waiting import until
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import read_trajectory

DEEP = '{"more":' * 2000 + "1" + "}" * 2000
CUT = Turn(text="```bash\nls", finish="length")


@dataclass(frozen=True)
class AgentRun:
    """The result of an agent's work."""

    outcome: Outcome
    trajectory: Trajectory
    log: str

    @property
    def messages(self) -> list[Message]:
        """The longest conversation, without its last answer."""
        return self.trajectory.messages_of(self.trajectory.exchanges[-1])

    @property
    def reports(self) -> list[str]:
        """The messages of the agent to the policy after the task."""
        return [one.text for one in self.messages[2:] if one.role in ("tool", "user")]


Work = Callable[..., Awaitable[AgentRun]]
Assign = Callable[[Access | None], Assignment]


@pytest.fixture
def log() -> bytearray:
    """The output of the agent."""
    return bytearray()


@pytest.fixture
def assign(sandbox: Sandbox, tmp_path: Path, log: bytearray) -> Assign:
    task = write_task_folder(
        tmp_path / "task",
        {
            "instruction.md": "Make /tmp/done.\n",
            "environment/Dockerfile": HOST,
            "tests/test.sh": "exit 1\n",
        },
    )

    def assign(policy: Access | None) -> Assignment:
        return Assignment(
            step=task.steps[0],
            sandbox=sandbox,
            instruction="Make /tmp/done.",
            env={"GREETING": "hello"},
            user=None,
            on_output=lambda _, chunk: log.extend(chunk),
            policy=policy,
        )

    return assign


@pytest.fixture
def work(assign: Assign, tmp_path: Path, log: bytearray) -> Work:
    """Run the agent with a policy that answers with these turns."""

    async def work(
        *turns: Turn,
        answer: Callable[[ScriptedRequest], Turn | str] | None = None,
        upstream: ScriptedPolicy | None = None,
        agent: Shell | None = None,
        limits: Limits | None = None,
    ) -> AgentRun:
        async with Gateway(upstream or ScriptedPolicy(answer or Script(turns=turns))) as gateway:
            session = await gateway.open(tmp_path / "t", blobs=tmp_path / "b", limits=limits)
            outcome = await (agent or Shell()).run(assign(session.access(gateway.port)))
            path = await session.end()
        return AgentRun(outcome, read_trajectory(path), log.decode())

    return work


async def test_tool_calls_are_run_until_the_policy_submits(work: Work, sandbox: Sandbox):
    worked = await work(
        Turn(run="echo $GREETING; echo oops >&2; touch /tmp/done", text="I make it."),
        Turn(run="ls /tmp/done; exit 3"),
        Turn(submit=True),
    )
    assert worked.outcome == Outcome(Ending.SUBMITTED)
    assert (await sandbox.exec("test -e /tmp/done")).ok
    first, second = worked.reports
    assert first.startswith("exit 0\n")
    assert sorted(first.split("\n")[1:]) == ["", "hello", "oops"]
    assert second == "exit 3\n/tmp/done\n"
    assert "$ ls /tmp/done; exit 3\n/tmp/done\n" in worked.log


async def test_a_conversation_is_one_branch_token_by_token(work: Work):
    turns = [Turn(run=f"echo {number}", reasoning="Hm.", text="Next.") for number in range(4)]
    worked = await work(*turns, Turn(text="Done."))
    assert [one.branch for one in worked.trajectory.exchanges] == ["start", *["extends"] * 4]
    assert len(worked.trajectory.samples()) == 1


async def test_a_policy_without_tool_calls_can_write_blocks(work: Work, sandbox: Sandbox):
    def answer(asked: ScriptedRequest) -> str:
        if "exit 0" in asked.last:
            return "That is done."
        return "<think>```bash\nfalse\n```</think>Like so:\n```bash\necho a > /tmp/done\n```\nDone?"

    worked = await work(answer=answer)
    assert worked.outcome == Outcome(Ending.SUBMITTED)
    assert worked.reports == ["exit 0\n(no output)"]
    assert [one.role for one in worked.messages] == ["system", "user", "assistant", "user"]
    assert (await sandbox.exec("cat /tmp/done")).stdout.text == "a\n"


async def test_a_block_that_says_submit_ends_the_work(work: Work):
    worked = await work(Turn(text="```sh\nsubmit\n```"))
    assert worked.outcome == Outcome(Ending.SUBMITTED)
    assert len(worked.trajectory.exchanges) == 1


async def test_a_longer_fence_may_hold_a_shorter_one(work: Work, sandbox: Sandbox):
    block = "````bash\ncat > /tmp/done <<'E'\n```\nx\n```\nE\n````"
    await work(answer=lambda asked: "Done." if "exit 0" in asked.last else block)
    assert (await sandbox.exec("cat /tmp/done")).stdout.text == "```\nx\n```\n"


async def test_a_server_that_refuses_tools_is_asked_without_them(work: Work, sandbox: Sandbox):
    def answer(asked: ScriptedRequest) -> Turn | str:
        if asked.tools:
            return Turn(failure=400)
        return "Done." if "exit 0" in asked.last else "```bash\ntouch /tmp/done\n```"

    worked = await work(answer=answer)
    assert worked.outcome == Outcome(Ending.SUBMITTED)
    assert (await sandbox.exec("test -e /tmp/done")).ok
    assert len(worked.trajectory.troubles) == 1


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (Turn(calls=(CallSpec(name="bash", arguments="{not json"),)), 'such as {"command"'),
        (Turn(calls=(CallSpec(name="bash", arguments={"cmd": "ls"}),)), 'such as {"command"'),
        (Turn(calls=(CallSpec(name="bash", arguments=DEEP),)), 'such as {"command"'),
        (Turn(calls=(CallSpec(name="bash", arguments={"command": ""}),)), "command is empty"),
        (Turn(calls=(CallSpec(name="bash", arguments={"command": "ls\0"}),)), "a NUL character"),
        (Turn(calls=(CallSpec(name="edit", arguments={}),)), "There is no tool 'edit'"),
        (Turn(text="```bash\n```"), "command is empty"),
        (Turn(text="```bash\nls\0\n```"), "a NUL character"),
        (Turn(text=""), "is empty"),
        (Turn(text="I think that", finish="length"), "was cut off"),
        (CUT, "does not end"),
    ],
    ids=[
        *("no-json", "no-command", "too-deep", "empty-command", "nul", "no-tool"),
        *("empty-block", "nul-in-a-block", "empty", "too-long", "open-block"),
    ],
)
async def test_an_invalid_answer_is_corrected_but_not_a_second_one_in_a_row(
    work: Work, mistake: Turn, words: str
):
    def answer(asked: ScriptedRequest) -> Turn:
        answers = sum(message.role == "assistant" for message in asked.messages)
        return (mistake, Turn(run="echo fine"), mistake, mistake, Turn(text="Done."))[answers]

    worked = await work(answer=answer)
    assert worked.outcome.ending is Ending.SUBMITTED
    assert worked.outcome.detail == "two answers in a row had no valid command"
    first, second, third = worked.reports
    assert words in first and words in third
    assert second == "exit 0\nfine\n"


async def test_invalid_arguments_are_not_sent_back_to_the_server(work: Work):
    broken = CallSpec(name="bash", arguments="{not json")
    fine = CallSpec(name="bash", arguments={"command": "true"})
    worked = await work(Turn(calls=(broken, fine)))
    sent = [call.arguments for call in worked.messages[2].calls]
    assert sent == ["{}", '{"command":"true"}']


async def test_an_answer_may_lack_the_fields_that_servers_leave_out(assign: Assign, log: bytearray):
    """The gateway forwards such answers unchanged."""
    command = {"name": "bash", "arguments": '{"command": "echo fine"}'}
    calls = iter([command, {"name": "submit"}])

    async def answer(_: web.Request) -> web.Response:
        message = {"role": "assistant", "tool_calls": [{"id": "1", "function": next(calls)}]}
        return web.json_response({"choices": [{"message": message}]})

    server = web.Application()
    server.router.add_post("/s/x/v1/chat/completions", answer)
    async with TestServer(server) as gateway:
        access = Access(str(gateway.make_url("/s/x")), "key", "policy")
        assert await Shell().run(assign(access)) == Outcome(Ending.SUBMITTED)
    assert log.decode() == "$ echo fine\nfine\n"


async def test_the_output_shown_to_the_policy_is_bounded(work: Work):
    printed = "seq 100000; echo the end"
    worked = await work(Turn(run=printed), agent=Shell(output_bytes=2000))
    (reports,) = worked.reports
    assert reports.startswith("exit 0\n1\n2\n")
    assert reports.endswith("the end\n")
    assert "bytes left out" in reports
    assert len(reports) < 2200


async def test_a_command_that_times_out_is_killed_and_reported(work: Work):
    time = long_time()
    worked = await work(Turn(run=f"echo begun; sleep {time}"), agent=Shell(command_timeout=2))
    (reports,) = worked.reports
    assert re.match(r"timed out after \d", reports)
    assert "begun" in reports
    assert not processes_with(time)


async def test_each_call_of_an_answer_is_reported(work: Work):
    calls = tuple(
        CallSpec(name="bash", arguments={"command": command}) for command in ("echo a", "exit 2")
    )
    worked = await work(Turn(calls=calls))
    assert worked.reports == ["exit 0\na\n", "exit 2\n(no output)"]
    answer = worked.messages[2]
    assert [one.call_id for one in worked.messages[3:]] == [call.id for call in answer.calls]


async def test_an_exhausted_budget_ends_as_budget(work: Work):
    worked = await work(answer=lambda _: Turn(run="echo again"), limits=Limits(turns=3))
    assert worked.outcome.ending is Ending.BUDGET
    assert "3" in worked.outcome.detail
    assert len(worked.trajectory.exchanges) == 3


async def test_a_refusal_ends_as_refused(work: Work):
    worked = await work(Turn(text="No.", finish="content_filter"))
    assert worked.outcome.ending is Ending.REFUSED


async def test_a_failing_policy_is_an_error_of_the_trial(work: Work):
    with pytest.raises(AgentError, match="the gateway answered 50"):
        await work(Turn(failure=500))


async def test_a_gateway_that_is_gone_is_an_error(assign):
    with pytest.raises(AgentError, match="the gateway cannot be reached"):
        await Shell().run(assign(Access("http://127.0.0.1:9/s/x", "key", "policy")))


async def test_a_missing_policy_is_an_error(assign):
    with pytest.raises(AgentError, match="needs a policy"):
        await Shell().run(assign(None))


class RecordingPolicy(ScriptedPolicy):
    """A policy that records the sampling parameters of its requests."""

    settings: dict[str, msgspec.Raw]

    async def answer(self, request: Request, call: CallContext) -> Answer:
        self.settings = request.settings
        return await super().answer(request, call)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.5, "max_tokens": 7}])
async def test_only_given_sampling_parameters_are_sent(work: Work, sampling):
    policy = RecordingPolicy(Script())
    await work(upstream=policy, agent=Shell(sampling=sampling))
    assert {name: msgspec.json.decode(raw) for name, raw in policy.settings.items()} == sampling


async def test_a_command_that_is_too_long_to_start_is_reported(work: Work):
    worked = await work(Turn(run=f"true {'x' * 300_000}"))
    (reports,) = worked.reports
    assert "Argument list too long" in reports


async def test_a_cancelled_agent_leaves_no_command_behind(work: Work):
    time = long_time()
    running = asyncio.create_task(work(Turn(run=f"sleep {time}")))
    await until(lambda: processes_with(time))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not processes_with(time)
