"""The engine of a scripted policy: the body that a server of models would send, with tokens.

Its bytes are those of vLLM's form of Chat Completions, so the in-process upstream and the
HTTP server of a script differ in nothing but the way they travel.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from plimsoll.gateway.serving.writing import Wants, answer_head, token_fields, usage_of
from plimsoll.gateway.upstreams.asked import Asked
from plimsoll.gateway.upstreams.byte_tokens import (
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
from plimsoll.gateway.upstreams.script import CallLine, Script, Turn
from plimsoll.gateway.upstreams.script_tools import end_line, offers_submit, run_call
from plimsoll.gateway.upstreams.scripted_length import Said, ScriptedCall, shortened

__all__ = ["Engine", "Reply"]

PIECE = 12
"""Characters of a streamed piece."""
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is ready to be written down."""

    turn: Turn
    said: Said
    prompt: list[int]
    ids: list[int]
    key: str
    cut: bool
    """It is longer than it was asked to be, so its end is missing."""

    @property
    def finish(self) -> str:
        if self.cut:
            return "length"
        return "tool_calls" if self.said.calls else self.turn.finish

    @property
    def usage(self) -> dict[str, int]:
        return usage_of(len(self.prompt), len(self.ids))


class Engine:
    """Answers requests after a script, or a function that says what to answer."""

    def __init__(
        self, script: Script | Callable[[Asked], Turn | str], *, model: str = "scripted"
    ) -> None:
        self._script = script
        self.model = model
        # What it thought is no longer in the conversation when the agent sends it back, but
        # it is in the tokens: as with an engine that keeps what it has computed.
        self._thoughts: OrderedDict[str, str] = OrderedDict()

    def reply(self, asked: Asked) -> Reply:
        said = self._script.turn(asked) if isinstance(self._script, Script) else self._script(asked)
        turn = Turn(text=said) if isinstance(said, str) else said
        self._think_back(asked)
        prompt = prompt_ids(asked)
        key = hashlib.blake2b(msgspec.json.encode(prompt), digest_size=6).hexdigest()
        text, lines = _spoken(turn, asked)
        calls = [_call(line, index, key, asked) for index, line in enumerate(lines)]
        spoken = Said(turn.reasoning, text, calls)
        ids = _ids(spoken)
        cut = asked.limit is not None and len(ids) > asked.limit
        if asked.limit is not None and cut:
            spoken = shortened(spoken, asked.limit)
            ids = _ids(spoken)[:-1]
        if spoken.reasoning:
            self._remember(_visible(spoken.text, [call.id for call in calls]), spoken.reasoning)
        return Reply(turn, spoken, prompt, ids, key, cut)

    def body(self, reply: Reply, wants: Wants) -> bytes:
        """A whole answer."""
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

    def events(self, reply: Reply, wants: Wants, *, usage: bool = True) -> Iterator[bytes]:
        """The data of a stream's events, without the last, `[DONE]`."""
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

    def _think_back(self, asked: Asked) -> None:
        for message in asked.messages:
            if message.role == "assistant" and not message.thought:
                key = _visible(message.text, [call.id for call in message.tool_calls or ()])
                message.reasoning = self._thoughts.get(key)

    def _remember(self, key: str, thought: str) -> None:
        self._thoughts[key] = thought
        self._thoughts.move_to_end(key)
        if len(self._thoughts) > REMEMBERED:
            self._thoughts.popitem(last=False)


def _visible(text: str, calls: Sequence[str]) -> str:
    """What an answer is known by when it comes back without its reasoning."""
    return "\0".join([text.strip(), *calls])


def _spoken(turn: Turn, asked: Asked) -> tuple[str, list[CallLine]]:
    """The text of a turn and its calls, in the words of the agent's own tools."""
    lines = list(turn.calls)
    commands = [turn.run] if turn.run else []
    if turn.submit and offers_submit(asked.tools):
        lines.append(CallLine(name="submit"))
    elif turn.submit and (line := end_line(asked.conversation)):
        commands.append(f"echo {line}")
    text = turn.text
    for command in commands:
        call = run_call(command, asked.tools)
        if call is not None:
            name, arguments = call
            lines.append(CallLine.model_validate({"name": name, "arguments": arguments}))
        else:
            # No tool runs commands: agents of this kind read them from a fenced block.
            text = f"{text}\n\n```bash\n{command}\n```".strip()
    return text, lines


def _ids(said: Said) -> list[int]:
    return answer_ids(said.reasoning, said.text, [(c.name, c.arguments) for c in said.calls])


def _call(line: CallLine, index: int, key: str, asked: Asked) -> ScriptedCall:
    names = [line.name] if isinstance(line.name, str) else line.name
    offered = {tool.name for tool in asked.tools}
    name = next((name for name in names if name in offered), names[0] if names else "")
    given = line.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return ScriptedCall(f"call_{index}_{key}", name, canonical(arguments))


def _function(call: ScriptedCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}


def _tokens(
    wants: Wants, finish: str | None, ids: list[int], logprobs: list[float]
) -> dict[str, object]:
    return token_fields(wants, finish, ids, logprobs, [decode_ids([token]) for token in ids])


def _deltas(reply: Reply) -> Iterator[tuple[dict[str, object], list[int]]]:
    """The pieces of an answer with the tokens that each is made of; the last is empty."""
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
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]
