"""The built-in shell agent: a loop with the tools `bash` and `submit`.

    ask the policy → run the commands of its answer → send their output → ask again

The loop runs in this process, its commands in the sandbox. A command is a call of the tool `bash`,
or the first ```bash block of an answer without tool calls, for small models that cannot call tools.
The work is over when the policy calls `submit`, or answers without a command. Budgets are not
counted here: the session refuses a request over its budget, and the trial cancels `run` when the
time is over.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import msgspec
from msgspec.structs import replace

from plimsoll import __version__
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.core.endings import Ending
from plimsoll.core.errors import AgentError
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.output import Capture
from plimsoll.sandboxes.protocol import Mount, Sandbox, Stream
from plimsoll.tasks.task import Task

__all__ = ["Shell"]

SYSTEM = """\
You work in a Linux sandbox through bash, without anybody to ask. Do what the user asks for.

Run a command with the tool `bash`. If you cannot call tools, write it as one block instead:

```bash
ls -l
```

Each command runs in a new shell that starts in {workdir}: a `cd` or an exported variable does
not outlive it. Nothing can be typed into a running command, and it is killed after {timeout:g}
seconds. Of a long output you see the beginning and the end.

Look before you change something, and check your work. When it is done, call `submit`, or answer
without a command.
"""

TOOLS = msgspec.Raw(
    b'[{"type":"function","function":{"name":"bash","description":"Run a command in bash.",'
    b'"parameters":{"type":"object","properties":{"command":{"type":"string"}},'
    b'"required":["command"]}}},{"type":"function","function":{"name":"submit",'
    b'"description":"Say that the work is done.",'
    b'"parameters":{"type":"object","properties":{}}}}]'
)

BLOCK = re.compile(r"^(`{3,})(?:bash|sh|shell)[ \t]*\n(.*?)^\1[ \t]*$", re.DOTALL | re.MULTILINE)
OPEN_BLOCK = re.compile(r"^`{3,}(?:bash|sh|shell)[ \t]*$", re.MULTILINE)

OVER_BUDGET = "context_length_exceeded"
"""The error code for a conversation that is too long, or an exhausted budget."""


class Function(msgspec.Struct, frozen=True):
    """The name and the JSON arguments of a tool call. Some servers leave empty arguments out."""

    name: str
    arguments: str = ""


class Call(msgspec.Struct, frozen=True):
    """A tool call of an answer."""

    id: str
    function: Function
    type: str = "function"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of Chat Completions. Reasoning is sent back under the name it came with.

    Some servers leave the content of an answer with tool calls out.
    """

    role: str
    content: str | None = None
    tool_calls: tuple[Call, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """The one choice of an answer."""

    message: Message
    finish_reason: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """An answer of the policy."""

    choices: tuple[Choice, ...]


class Arguments(msgspec.Struct, frozen=True):
    """The arguments of `bash`."""

    command: str


class Fault(msgspec.Struct, frozen=True):
    """The error of a refused request."""

    message: str = ""
    code: str | None = None


class Refused(msgspec.Struct, frozen=True):
    """The body of a refusal."""

    error: Fault


class OverBudget(Exception):
    """The budget of the session is exhausted, or the conversation is too long."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and the id of its tool call. None for a block."""

    text: str
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Mistake:
    """A problem with a call or an answer, as reported to the policy."""

    problem: str
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Submit:
    """The policy declares the work done."""


class Shell:
    """The agent. `sampling` is part of every request: temperature, max_tokens, and so on."""

    name = "shell"
    version = __version__
    reference = False
    needs_policy = True
    inside = False
    mounts: tuple[Mount, ...] = ()

    def __init__(
        self,
        *,
        sampling: Mapping[str, object] | None = None,
        command_timeout: float = 180.0,
        output_bytes: int = 16 * 1024,
    ) -> None:
        self._sampling = dict(sampling or {})
        self._command_timeout = command_timeout
        self._output_bytes = output_bytes
        """Bytes of a command's output that are shown to the policy."""

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        del task, sandbox

    async def run(self, assignment: Assignment) -> Outcome:
        if assignment.policy is None:
            raise AgentError("the agent shell needs a policy, and none was given")
        terminal = Terminal(assignment, self._command_timeout, self._output_bytes)
        workdir, timeout = assignment.sandbox.workdir, self._command_timeout
        messages = [
            Message("system", SYSTEM.format(workdir=workdir, timeout=timeout)),
            Message("user", assignment.instruction),
        ]
        waiting = aiohttp.ClientTimeout(total=None, sock_connect=30)
        async with aiohttp.ClientSession(timeout=waiting) as http:
            policy = PolicyClient(http, assignment.policy, self._sampling)
            try:
                return await run_loop(policy, terminal, messages)
            except OverBudget as over:
                return Outcome(Ending.BUDGET, str(over))


async def run_loop(
    policy: "PolicyClient", terminal: "Terminal", messages: list[Message]
) -> Outcome:
    """The loop. It ends when the policy ends it. `messages` grows with each turn."""
    mistaken = False
    while True:
        choice = await policy.ask(messages)
        if choice.finish_reason == "content_filter":
            return Outcome(Ending.REFUSED, "the policy refused to answer")
        steps = read_steps(choice)
        if not steps:
            return Outcome()
        before, mistaken = mistaken, all(isinstance(step, Mistake) for step in steps)
        if before and mistaken:
            return Outcome(detail="two answers in a row had no valid command")
        messages.append(echo(choice.message))
        for step in steps:
            if isinstance(step, Submit):
                return Outcome()
            report = await terminal.run(step.text) if isinstance(step, Command) else step.problem
            role = "user" if step.call is None else "tool"
            messages.append(Message(role, report, tool_call_id=step.call))


def read_steps(choice: Choice) -> list[Command | Mistake | Submit]:
    """The steps of an answer. Empty if the policy is done."""
    if choice.message.tool_calls:
        return [read_call(call) for call in choice.message.tool_calls]
    # Reasoning that the server left in the text is not part of the answer.
    text = (choice.message.content or "").rpartition("</think>")[2].partition("<think>")[0]
    if (block := BLOCK.search(text)) is not None:
        command = block[2].strip()
        return [Submit() if command == "submit" else read_command(command)]
    if OPEN_BLOCK.search(text) is not None:
        return [Mistake("The block with your command does not end: close it with ```.")]
    if choice.finish_reason == "length":
        return [Mistake("Your answer was cut off before it held a command. Be shorter.")]
    if not text.strip():
        return [Mistake("Your answer is empty. Run a command, or say that you are done.")]
    return []


def read_call(call: Call) -> Command | Mistake | Submit:
    name = call.function.name
    if name == "submit":
        return Submit()
    if name != "bash":
        return Mistake(f"There is no tool {name!r}; there are bash and submit.", call.id)
    try:
        arguments = msgspec.json.decode(call.function.arguments, type=Arguments)
    except DECODE_ERRORS as error:
        usage = 'bash takes a JSON object such as {"command": "ls -l"}'
        return Mistake(f"The arguments cannot be read ({error}): {usage}.", call.id)
    return read_command(arguments.command, call.id)


def read_command(text: str, call: str | None = None) -> Command | Mistake:
    """A command that a sandbox can start: a sandbox refuses empty ones and NUL characters."""
    if not text.strip():
        return Mistake("Your command is empty. Write one, or say that you are done.", call)
    if "\0" in text:
        return Mistake("Your command has a NUL character, which bash does not accept.", call)
    return Command(text, call)


def echo(answer: Message) -> Message:
    """The answer as part of the next request: unchanged, unless servers would refuse it."""
    calls = tuple(with_valid_arguments(call) for call in answer.tool_calls or ())
    return replace(answer, role="assistant", content=answer.content or "", tool_calls=calls or None)


def with_valid_arguments(call: Call) -> Call:
    # Servers that render calls by their parsed arguments refuse a history with invalid ones.
    try:
        msgspec.json.decode(call.function.arguments, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        return replace(call, function=Function(call.function.name, "{}"))
    return call


class Terminal:
    """Runs commands in the sandbox, and reports their outcome with bounded output."""

    def __init__(self, assignment: Assignment, timeout: float, output_bytes: int) -> None:
        self._assignment = assignment
        self._timeout = timeout
        self._output_bytes = output_bytes

    async def run(self, command: str) -> str:
        log = self._assignment.on_output
        log("stdout", f"$ {command}\n".encode())
        printed = Capture(self._output_bytes)

        def take(stream: Stream, chunk: bytes) -> None:
            printed.feed(chunk)
            log(stream, chunk)

        done = await self._assignment.sandbox.exec(
            command,
            env=self._assignment.env,
            user=self._assignment.user,
            timeout=self._timeout,
            on_output=take,
            keep=0,
        )
        return f"{done.describe()}\n{printed.captured().text or '(no output)'}"


class PolicyClient:
    """Asks the policy through the gateway."""

    def __init__(
        self, http: aiohttp.ClientSession, access: Access, sampling: dict[str, object]
    ) -> None:
        self._http = http
        self._url = f"{access.openai}/chat/completions"
        self._headers = {
            "authorization": f"Bearer {access.key}",
            "content-type": "application/json",
        }
        self._body: dict[str, object] = {**sampling, "model": access.model, "tools": TOOLS}

    async def ask(self, messages: list[Message]) -> Choice:
        status, data = await self._post(messages)
        if status == 400 and "tools" in self._body and len(messages) == 2:
            # Servers without a parser for tool calls refuse tools: use blocks instead.
            raise_if_over_budget(data)
            del self._body["tools"]
            status, data = await self._post(messages)
        if status != 200:
            raise_if_over_budget(data)
            raise AgentError(f"the gateway answered {status}: {fault_of(data).message[:500]}")
        try:
            return msgspec.json.decode(data, type=Answer).choices[0]
        except (*DECODE_ERRORS, IndexError) as error:
            raise AgentError(f"the gateway's answer cannot be read: {error}") from error

    async def _post(self, messages: list[Message]) -> tuple[int, bytes]:
        body = msgspec.json.encode({**self._body, "messages": messages})
        try:
            async with self._http.post(self._url, data=body, headers=self._headers) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise AgentError(f"the gateway cannot be reached: {why}") from error


def raise_if_over_budget(data: bytes) -> None:
    """Raise `OverBudget` if the refusal is for an exhausted budget."""
    fault = fault_of(data)
    if fault.code == OVER_BUDGET:
        raise OverBudget(fault.message)


def fault_of(data: bytes) -> Fault:
    try:
        return msgspec.json.decode(data, type=Refused).error
    except DECODE_ERRORS:
        return Fault(message=data[:500].decode("utf-8", "replace"))
