"""The scripted model: the response bodies that an inference server would send, with tokens.

The bytes are those of vLLM's Chat Completions, so that the in-process upstream and the HTTP server
of a script differ only in the transport.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from plimsoll.gateway.chat_server.wire_format import (
    TokenOptions,
    answer_head,
    token_fields,
    usage_of,
)
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
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest
from plimsoll.gateway.upstreams.scripted.script import CallSpec, Script, Turn
from plimsoll.gateway.upstreams.scripted.shell_tools import end_line, offers_submit, run_call

__all__ = ["Reply", "ScriptedAnswer", "ScriptedCall", "ScriptedModel", "truncated"]


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


def truncated(said: ScriptedAnswer, tokens: int) -> ScriptedAnswer:
    """The answer cut to this many tokens, without its end token. Characters are not split."""
    room = _TokenBudget(tokens)
    # Reasoning is enclosed in two special tokens; two precede the arguments of a call.
    reasoning = room.take(said.reasoning, marks=2) if said.reasoning else ""
    text = room.take(said.text)
    calls: list[ScriptedCall] = []
    for call in said.calls:
        named = room.take(call.name, marks=2)
        if named != call.name or room.left < 0:
            break
        calls.append(replace(call, arguments=room.take(call.arguments)))
    return ScriptedAnswer(reasoning, text, calls)


class _TokenBudget:
    """The remaining tokens. A text that does not fit leaves none for the next one."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def take(self, text: str, marks: int = 0) -> str:
        data = text.encode()
        room = max(0, self.left - marks)
        self.left -= marks + len(data)
        return data[:room].decode("utf-8", "ignore")


PIECE_CHARS = 12
"""Characters of a streamed piece."""
MAX_THOUGHTS = 4096


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is ready to be encoded."""

    turn: Turn
    said: ScriptedAnswer
    prompt: list[int]
    ids: list[int]
    key: str
    cut: bool
    """The answer was longer than the limit, so its end is missing."""

    @property
    def finish(self) -> str:
        if self.cut:
            return "length"
        return "tool_calls" if self.said.calls else self.turn.finish

    @property
    def usage(self) -> dict[str, int]:
        return usage_of(len(self.prompt), len(self.ids))


class ScriptedModel:
    """Answers requests by a script, or by a function that returns the answer."""

    def __init__(
        self, script: Script | Callable[[ScriptedRequest], Turn | str], *, model: str = "scripted"
    ) -> None:
        self._script = script
        self.model = model
        # Agents do not send reasoning back, but it stays in the tokens, as with a server that keeps
        # its KV cache.
        self._thoughts: OrderedDict[str, str] = OrderedDict()

    def reply(self, asked: ScriptedRequest) -> Reply:
        said = self._script.turn(asked) if isinstance(self._script, Script) else self._script(asked)
        turn = Turn(text=said) if isinstance(said, str) else said
        self._think_back(asked)
        prompt = prompt_ids(asked)
        key = hashlib.blake2b(msgspec.json.encode(prompt), digest_size=6).hexdigest()
        text, lines = _spoken(turn, asked)
        calls = [_call(line, index, key, asked) for index, line in enumerate(lines)]
        spoken = ScriptedAnswer(turn.reasoning, text, calls)
        ids = _ids(spoken)
        cut = asked.limit is not None and len(ids) > asked.limit
        if asked.limit is not None and cut:
            spoken = truncated(spoken, asked.limit)
            ids = _ids(spoken)[:-1]
        if spoken.reasoning:
            self._remember(_visible(spoken.text, [call.id for call in calls]), spoken.reasoning)
        return Reply(turn, spoken, prompt, ids, key, cut)

    def body(self, reply: Reply, wants: TokenOptions) -> bytes:
        """The body of a whole answer."""
        said = reply.said
        message: dict[str, object] = {"role": "assistant", "content": said.text or None}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": _function(call)}
                for call in said.calls
            ]
        tokens = _tokens(wants, reply.finish, reply.ids, logprobs_of(reply.ids))
        whole = self._head(reply, "chat.completion") | {
            "choices": [{"index": 0, "message": message, **tokens}],
            "usage": reply.usage,
        }
        if wants.ids:
            whole["prompt_token_ids"] = reply.prompt
        return msgspec.json.encode(whole)

    def events(self, reply: Reply, wants: TokenOptions, *, usage: bool = True) -> Iterator[bytes]:
        """The data of a stream's events, without the final `[DONE]`."""
        head = self._head(reply, "chat.completion.chunk")
        first: dict[str, object] = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        if wants.ids:
            first["prompt_token_ids"] = reply.prompt
        yield msgspec.json.encode(head | first)
        logprobs, done = logprobs_of(reply.ids), 0
        for delta, ids in _deltas(reply):
            finish = reply.finish if not delta else None
            tokens = _tokens(wants, finish, ids, logprobs[done : done + len(ids)])
            done += len(ids)
            choice = {"index": 0, "delta": delta, **tokens}
            yield msgspec.json.encode(head | {"choices": [choice]})
        if usage:
            yield msgspec.json.encode(head | {"choices": [], "usage": reply.usage})

    def _head(self, reply: Reply, kind: str) -> dict[str, object]:
        return answer_head(kind, reply.key, self.model, 1_700_000_000)

    def _think_back(self, asked: ScriptedRequest) -> None:
        for message in asked.messages:
            if message.role == "assistant" and not message.thought:
                key = _visible(message.text, [call.id for call in message.tool_calls or ()])
                message.reasoning = self._thoughts.get(key)

    def _remember(self, key: str, thought: str) -> None:
        self._thoughts[key] = thought
        self._thoughts.move_to_end(key)
        if len(self._thoughts) > MAX_THOUGHTS:
            self._thoughts.popitem(last=False)


def _visible(text: str, calls: Sequence[str]) -> str:
    """The key of an answer that comes back without its reasoning."""
    return "\0".join([text.strip(), *calls])


def _spoken(turn: Turn, asked: ScriptedRequest) -> tuple[str, list[CallSpec]]:
    """The text and calls of a turn, for the tools that the agent offers."""
    lines = list(turn.calls)
    commands = [turn.run] if turn.run else []
    if turn.submit and offers_submit(asked.tools):
        lines.append(CallSpec(name="submit"))
    elif turn.submit and (line := end_line(asked.conversation)):
        commands.append(f"echo {line}")
    text = turn.text
    for command in commands:
        call = run_call(command, asked.tools)
        if call is not None:
            name, arguments = call
            lines.append(CallSpec.model_validate({"name": name, "arguments": arguments}))
        else:
            # No tool runs commands: agents of this kind read them from a fenced block.
            text = f"{text}\n\n```bash\n{command}\n```".strip()
    return text, lines


def _ids(said: ScriptedAnswer) -> list[int]:
    return answer_ids(said.reasoning, said.text, [(c.name, c.arguments) for c in said.calls])


def _call(line: CallSpec, index: int, key: str, asked: ScriptedRequest) -> ScriptedCall:
    names = [line.name] if isinstance(line.name, str) else line.name
    offered = {tool.name for tool in asked.tools}
    name = next((name for name in names if name in offered), names[0] if names else "")
    given = line.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return ScriptedCall(f"call_{index}_{key}", name, canonical(arguments))


def _function(call: ScriptedCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}


def _tokens(
    wants: TokenOptions, finish: str | None, ids: list[int], logprobs: list[float]
) -> dict[str, object]:
    return token_fields(wants, finish, ids, logprobs, [decode_ids([token]) for token in ids])


def _deltas(reply: Reply) -> Iterator[tuple[dict[str, object], list[int]]]:
    """The pieces of an answer, each with its tokens; the last is empty."""
    ids = [THOUGHT]
    said = reply.said
    for piece in _pieces(said.reasoning):
        yield {"reasoning_content": piece}, [*ids, *piece.encode()]
        ids = []
    ids = [SAID] if said.reasoning else []
    for piece in _pieces(said.text):
        yield {"content": piece}, [*ids, *piece.encode()]
        ids = []
    for index, call in enumerate(said.calls):
        begun = {"index": index, "id": call.id, "type": "function"}
        named = begun | {"function": {"name": call.name, "arguments": ""}}
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
