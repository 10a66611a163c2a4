"""The scripted model: the response bodies that an inference server would send, with tokens.

The bytes are those of vLLM's Chat Completions, so that the in-process upstream and the HTTP server
of a script differ only in the transport.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.chat_server.wire_format import (
    TokenOptions,
    answer_head,
    token_fields,
    usage_of,
)
from plimsoll.gateway.upstreams.answer_fields import ABSENT
from plimsoll.gateway.upstreams.scripted.byte_tokens import (
    ARGUMENTS,
    CALL,
    END,
    SAID,
    THOUGHT,
    answer_ids,
    canonical,
    decode_ids,
    logprobs_of,
    prompt_ids,
)
from plimsoll.gateway.upstreams.scripted.request import RequestTool, ScriptedRequest
from plimsoll.gateway.upstreams.scripted.script import CallSpec, Script, Turn

__all__ = [
    "Reply",
    "ScriptedAnswer",
    "ScriptedCall",
    "ScriptedModel",
    "end_line",
    "run_call",
    "truncated",
]

SHELLS = (
    "bash",
    "shell_command",
    "exec_command",
    "shell",
    "local_shell",
    "run_shell_command",
    "execute_bash",
    "run_command",
    "terminal",
)
COMMANDS = ("command", "cmd", "script", "code", "input")

END_LINE = re.compile(r"\b[A-Z]+_TASK_AND_SUBMIT_[A-Z_]+\b")
"""The line that an agent expects to be printed when the work is done."""


class _Property(msgspec.Struct):
    type: str | list[str] | None = None
    enum: list[msgspec.Raw] | None = None
    default: msgspec.Raw = ABSENT


class _Schema(msgspec.Struct):
    properties: dict[str, _Property] = {}
    required: list[str] = []


_schema = msgspec.json.Decoder(_Schema)

_FILLED: dict[str, object] = {
    "string": "as the script says",
    "boolean": False,
    "integer": 60,
    "number": 60,
    "array": [],
    "object": {},
}


def run_call(command: str, tools: list[RequestTool]) -> tuple[str, dict[str, object]] | None:
    """The tool name and arguments that run a script's command; None if no tool can.

    Agents name their shell tool differently and expect different arguments: a string, a list of
    words, an additional description. The tool's JSON schema tells which.
    """
    for tool in _in_order(tools):
        schema = _read_schema(tool)
        name = next((name for name in COMMANDS if name in schema.properties), None)
        if name is None:
            continue
        arguments: dict[str, object] = {name: _command(command, schema.properties[name])}
        for other in schema.required:
            if other not in arguments:
                arguments[other] = _fill(schema.properties.get(other, _Property()))
        return tool.name, arguments
    return None


def offers_submit(tools: list[RequestTool]) -> bool:
    return any(tool.name == "submit" for tool in tools)


def end_line(conversation: str) -> str:
    """The line that ends the task for this agent; empty if there is none."""
    found = END_LINE.search(conversation)
    return found.group() if found else ""


def _in_order(tools: list[RequestTool]) -> list[RequestTool]:
    """Known shells first, then any other tool that takes a command."""
    rank = {name: index for index, name in enumerate(SHELLS)}
    return sorted(tools, key=lambda tool: rank.get(tool.name.lower(), len(rank)))


def _read_schema(tool: RequestTool) -> _Schema:
    try:
        return _schema.decode(tool.parameters)
    except DECODE_ERRORS:
        return _Schema()


def _command(command: str, schema_property: _Property) -> object:
    return ["bash", "-lc", command] if _type(schema_property) == "array" else command


def _fill(schema_property: _Property) -> object:
    fixed = bytes(schema_property.default) or (
        bytes(schema_property.enum[0]) if schema_property.enum else b""
    )
    if fixed:
        return msgspec.json.decode(fixed)
    return _FILLED.get(_type(schema_property), "")


def _type(schema_property: _Property) -> str:
    kind = schema_property.type
    return (kind[0] if kind else "") if isinstance(kind, list) else (kind or "string")


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call of an answer."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """The parts of an answer."""

    reasoning: str
    text: str
    calls: Sequence[ScriptedCall]


def truncated(answer: ScriptedAnswer, tokens: int) -> ScriptedAnswer:
    """The answer cut to this many tokens, without its end token. Characters are not split."""
    budget = _TokenBudget(tokens)
    # Reasoning is enclosed in two special tokens; two precede the arguments of a call.
    reasoning = budget.take(answer.reasoning, special=2) if answer.reasoning else ""
    text = budget.take(answer.text)
    calls: list[ScriptedCall] = []
    for call in answer.calls:
        named = budget.take(call.name, special=2)
        if named != call.name or budget.left < 0:
            break
        calls.append(replace(call, arguments=budget.take(call.arguments)))
    return ScriptedAnswer(reasoning, text, calls)


class _TokenBudget:
    """The remaining tokens. A text that does not fit leaves none for the next one."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def take(self, text: str, special: int = 0) -> str:
        data = text.encode()
        budget = max(0, self.left - special)
        self.left -= special + len(data)
        return data[:budget].decode("utf-8", "ignore")


PIECE_CHARS = 12
"""Characters of a streamed piece."""
MAX_THOUGHTS = 4096


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is ready to be encoded."""

    turn: Turn
    answer: ScriptedAnswer
    prompt: list[int]
    ids: list[int]
    key: str
    cut: bool
    """The answer was longer than the limit, so its end is missing."""

    @property
    def finish(self) -> str:
        if self.cut:
            return "length"
        return "tool_calls" if self.answer.calls else self.turn.finish

    @property
    def usage(self) -> dict[str, int]:
        return usage_of(len(self.prompt), len(self.ids))


class ScriptedModel:
    """Answers requests by a script, or by a function that returns the answer."""

    model = "scripted"

    def __init__(self, script: Script | Callable[[ScriptedRequest], Turn | str]) -> None:
        self._script = script
        # Agents do not send reasoning back, but it stays in the tokens, as with a server that keeps
        # its KV cache.
        self._thoughts: OrderedDict[str, str] = OrderedDict()

    def reply(self, request: ScriptedRequest) -> Reply:
        answer = (
            self._script.turn(request)
            if isinstance(self._script, Script)
            else self._script(request)
        )
        turn = Turn(text=answer) if isinstance(answer, str) else answer
        self._restore_reasoning(request)
        prompt = prompt_ids(request)
        key = hashlib.blake2b(msgspec.json.encode(prompt), digest_size=6).hexdigest()
        text, specs = _text_and_calls(turn, request)
        calls = [_call(spec, index, key, request) for index, spec in enumerate(specs)]
        answer = ScriptedAnswer(turn.reasoning, text, calls)
        ids = _ids(answer)
        cut = request.limit is not None and len(ids) > request.limit
        if request.limit is not None and cut:
            answer = truncated(answer, request.limit)
            ids = _ids(answer)[:-1]
        if answer.reasoning:
            self._remember_reasoning(
                _visible_key(answer.text, [call.id for call in calls]), answer.reasoning
            )
        return Reply(turn, answer, prompt, ids, key, cut)

    def body(self, reply: Reply, options: TokenOptions) -> bytes:
        """The body of a whole answer."""
        answer = reply.answer
        message: dict[str, object] = {"role": "assistant", "content": answer.text or None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": _function(call)}
                for call in answer.calls
            ]
        tokens = _tokens(options, reply.finish, reply.ids, logprobs_of(reply.ids))
        whole = self._head(reply, "chat.completion") | {
            "choices": [{"index": 0, "message": message, **tokens}],
            "usage": reply.usage,
        }
        if options.ids:
            whole["prompt_token_ids"] = reply.prompt
        return msgspec.json.encode(whole)

    def events(self, reply: Reply, options: TokenOptions, *, usage: bool = True) -> Iterator[bytes]:
        """The data of a stream's events, without the final `[DONE]`."""
        head = self._head(reply, "chat.completion.chunk")
        first: dict[str, object] = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        if options.ids:
            first["prompt_token_ids"] = reply.prompt
        yield msgspec.json.encode(head | first)
        logprobs, done = logprobs_of(reply.ids), 0
        for delta, ids in _deltas(reply):
            finish = reply.finish if not delta else None
            tokens = _tokens(options, finish, ids, logprobs[done : done + len(ids)])
            done += len(ids)
            choice = {"index": 0, "delta": delta, **tokens}
            yield msgspec.json.encode(head | {"choices": [choice]})
        if usage:
            yield msgspec.json.encode(head | {"choices": [], "usage": reply.usage})

    def _head(self, reply: Reply, kind: str) -> dict[str, object]:
        return answer_head(kind, reply.key, self.model, 1_700_000_000)

    def _restore_reasoning(self, request: ScriptedRequest) -> None:
        for message in request.messages:
            if message.role == "assistant" and not message.reasoning_text:
                key = _visible_key(message.text, [call.id for call in message.tool_calls or ()])
                message.reasoning = self._thoughts.get(key)

    def _remember_reasoning(self, key: str, reasoning_text: str) -> None:
        self._thoughts[key] = reasoning_text
        self._thoughts.move_to_end(key)
        if len(self._thoughts) > MAX_THOUGHTS:
            self._thoughts.popitem(last=False)


def _visible_key(text: str, calls: Sequence[str]) -> str:
    """The key of an answer that comes back without its reasoning."""
    return "\0".join([text.strip(), *calls])


def _text_and_calls(turn: Turn, request: ScriptedRequest) -> tuple[str, list[CallSpec]]:
    """The text and calls of a turn, for the tools that the agent offers."""
    specs = list(turn.calls)
    commands = [turn.run] if turn.run else []
    if turn.submit and offers_submit(request.tools):
        specs.append(CallSpec(name="submit"))
    elif turn.submit and (line := end_line(request.conversation)):
        commands.append(f"echo {line}")
    text = turn.text
    for command in commands:
        call = run_call(command, request.tools)
        if call is not None:
            name, arguments = call
            specs.append(CallSpec.model_validate({"name": name, "arguments": arguments}))
        else:
            # No tool runs commands: agents of this kind read them from a fenced block.
            text = f"{text}\n\n```bash\n{command}\n```".strip()
    return text, specs


def _ids(answer: ScriptedAnswer) -> list[int]:
    return answer_ids(answer.reasoning, answer.text, [(c.name, c.arguments) for c in answer.calls])


def _call(spec: CallSpec, index: int, key: str, request: ScriptedRequest) -> ScriptedCall:
    names = [spec.name] if isinstance(spec.name, str) else spec.name
    offered = {tool.name for tool in request.tools}
    name = next((name for name in names if name in offered), names[0] if names else "")
    given = spec.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return ScriptedCall(f"call_{index}_{key}", name, canonical(arguments))


def _function(call: ScriptedCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}


def _tokens(
    options: TokenOptions, finish: str | None, ids: list[int], logprobs: list[float]
) -> dict[str, object]:
    return token_fields(options, finish, ids, logprobs, [decode_ids([token]) for token in ids])


def _deltas(reply: Reply) -> Iterator[tuple[dict[str, object], list[int]]]:
    """The pieces of an answer, each with its tokens; the last is empty."""
    ids = [THOUGHT]
    answer = reply.answer
    for piece in _pieces(answer.reasoning):
        yield {"reasoning_content": piece}, [*ids, *piece.encode()]
        ids = []
    ids = [SAID] if answer.reasoning else []
    for piece in _pieces(answer.text):
        yield {"content": piece}, [*ids, *piece.encode()]
        ids = []
    for index, call in enumerate(answer.calls):
        header = {"index": index, "id": call.id, "type": "function"}
        named = header | {"function": {"name": call.name, "arguments": ""}}
        yield {"tool_calls": [named]}, [*ids, CALL, *call.name.encode(), ARGUMENTS]
        ids = []
        for piece in _pieces(call.arguments):
            yield _arguments(index, piece), list(piece.encode())
    yield {}, ids if reply.cut else [*ids, END]


def _arguments(index: int, piece: str) -> dict[str, object]:
    return {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]
