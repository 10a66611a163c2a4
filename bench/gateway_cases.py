"""The cases of `bench_gateway.py`: the agents' conversations and the upstream's answers.

A conversation begins with one big message and grows by an answer and its reply each turn, so that
the bodies of a case have about the same size. All conversations of a case are equal, each in its
own session. The newest message carries a mark that selects the upstream's answer without parsing.
"""

import functools
import os
import random
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

__all__ = ["CASES", "LAST_WORD", "MARK", "Case", "Dialect", "bodies", "reply_events", "whole_reply"]

Dialect = str
PATHS: dict[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
MARK = re.compile(rb"@bench:(\w+):(\d+)@")
LAST_WORD = "that-is-all"
"""The end of every answer: a client that receives it has the whole answer."""
VOCABULARY = 150_000


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table for each side."""

    name: str
    title: str
    size: int
    """Approximate bytes of a request's body."""
    conversations: int
    """Conversations per measurement."""
    turns: int = 20
    answer: int = 400
    """Characters of an answer."""
    reply: int = 700
    """Characters of the agent's next message: a tool's output."""
    tools: int = 12
    ids: int = 0
    """Tokens of an answer with ids and log probabilities; 0 for an answer without them."""
    chunks: int = 0
    """Pieces of a streamed answer; 0 for a whole one."""
    gap: float = 0.0
    """Seconds between the pieces."""
    dialect: Dialect = "chat"
    at_most: float | None = None
    """The target: CPU as a multiple of the pass-through's."""

    @property
    def path(self) -> str:
        return PATHS[self.dialect]

    @property
    def stream(self) -> bool:
        return self.chunks > 0


def _stream(name: str, title: str, conversations: int, **more: object) -> Case:
    settings: dict[str, object] = {"size": 16_000, "answer": 1000, "reply": 200, "chunks": 200}
    return Case(name, title, conversations=conversations, **(settings | more))  # type: ignore[arg-type]


CASES = (
    Case("small", "2 KB", 2_000, 32, answer=20, reply=20, tools=0, at_most=2.5),
    Case("middle", "64 KB", 64_000, 24, at_most=2.5),
    Case("large", "1 MB", 1_000_000, 8, reply=6000, at_most=2.0),
    Case("ids", "64 KB, ids", 64_000, 8, answer=2600, reply=300, ids=1000, at_most=3.5),
    _stream("chunks", "200 chunks", 8),
    _stream("paced", "200 chunks, 2 ms apart", 8, turns=5, gap=0.002, at_most=1.5),
    _stream("streamids", "200 chunks, ids", 8, ids=200),
    _stream("responses", "200 chunks, Responses", 8, dialect="responses"),
    _stream("messages", "200 chunks, Messages", 8, dialect="messages"),
    _stream("responsespaced", "2 ms apart, Responses", 8, turns=5, gap=0.002, dialect="responses"),
    _stream("messagespaced", "2 ms apart, Messages", 8, turns=5, gap=0.002, dialect="messages"),
)


@functools.cache
def _library() -> str:
    """The sources of Python's standard library: code, as agents read it."""
    folder = Path(os.__file__).parent
    return "".join(file.read_text(errors="replace") for file in sorted(folder.glob("*.py")))


def _text(length: int, seed: str) -> str:
    start = random.Random(seed).randrange(len(_library()) - length)
    return _library()[start : start + length]


def _ids(count: int, seed: str) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def _answer(case: Case, turn: int) -> str:
    return f"{_text(case.answer, f'{case.name} answer {turn}')} {LAST_WORD}"


def _reply(case: Case, turn: int) -> str:
    return f"@bench:{case.name}:{turn + 1}@ {_text(case.reply, f'{case.name} reply {turn}')}"


def _first(case: Case) -> str:
    growth = case.turns * (case.answer + case.reply + (250 if case.tools else 120)) // 2
    length = max(case.size - growth - case.tools * 500 - 200, 100)
    return f"{_text(length, f'{case.name} first')} @bench:{case.name}:0@"


def _calls_tools(case: Case) -> bool:
    """True if answers call a tool and replies are its output."""
    return case.tools > 0 and not case.stream


def _tools(case: Case) -> list[tuple[str, str, dict[str, object]]]:
    parameters: dict[str, object] = {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "What to run."}},
        "required": ["command"],
    }
    return [(f"tool_{n}", _text(280, f"tool {n}"), parameters) for n in range(case.tools)]


def _call(turn: int) -> dict[str, object]:
    arguments = f'{{"command": "{"x" * 60} {turn}"}}'
    function = {"name": "tool_0", "arguments": arguments}
    return {"id": f"call_{turn}", "type": "function", "function": function}


def _chat(case: Case) -> list[dict[str, object]]:
    """The bodies of a Chat Completions client, in order."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You write code."},
        {"role": "user", "content": _first(case)},
    ]
    base: dict[str, object] = {"model": "policy", "messages": messages, "stream": case.stream}
    if case.tools:
        base["tools"] = [
            {"type": "function", "function": {"name": n, "description": d, "parameters": p}}
            for n, d, p in _tools(case)
        ]
    found: list[dict[str, object]] = []
    for turn in range(case.turns):
        found.append(base | {"messages": list(messages)})
        answer: dict[str, object] = {"role": "assistant", "content": _answer(case, turn)}
        reply: dict[str, object] = {"role": "user", "content": _reply(case, turn)}
        if _calls_tools(case):
            answer["tool_calls"] = [_call(turn)]
            reply |= {"role": "tool", "tool_call_id": f"call_{turn}"}
        messages += [answer, reply]
    return found


def _translated(case: Case) -> list[dict[str, object]]:
    """The same conversation as a client of Responses or Messages sends it."""
    found: list[dict[str, object]] = []
    for body in _chat(case):
        system, *messages = body["messages"]  # type: ignore[misc]
        items: list[dict[str, object]] = []
        for message in messages:
            kind = "text" if case.dialect == "messages" else "input_text"
            if case.dialect == "responses" and message["role"] == "assistant":
                kind = "output_text"
            part = {"type": kind, "text": message["content"]}
            item: dict[str, object] = {"role": message["role"], "content": [part]}
            items.append(item if case.dialect == "messages" else {"type": "message", **item})
        if case.dialect == "messages":
            tools = [{"name": n, "description": d, "input_schema": p} for n, d, p in _tools(case)]
            more = {"system": system["content"], "messages": items, "max_tokens": 4096}
        else:
            tools = [
                {"type": "function", "name": n, "description": d, "parameters": p}
                for n, d, p in _tools(case)
            ]
            more = {"instructions": system["content"], "input": items}
        found.append({"model": "policy", "stream": case.stream, "tools": tools, **more})
    return found


def bodies(case: Case) -> list[bytes]:
    """The body of each turn's request."""
    made = _chat(case) if case.dialect == "chat" else _translated(case)
    return [msgspec.json.encode(body) for body in made]


@dataclass(frozen=True, slots=True)
class _Tokens:
    prompt: list[int]
    answer: list[int]
    logprobs: list[dict[str, object]]


def _tokens(case: Case, turn: int) -> _Tokens:
    """Ids like an inference server's: a prompt begins with those of the previous exchange."""
    prompt = _ids((len(_first(case)) + case.tools * 500) // 4, f"{case.name} first")
    for earlier in range(turn):
        prompt += _ids(case.ids, f"{case.name} answer {earlier}")
        prompt += _ids(case.reply // 4 + 8, f"{case.name} reply {earlier}")
    answer = _ids(case.ids, f"{case.name} answer {turn}")
    source = random.Random(f"{case.name} logprobs {turn}")
    logprobs: list[dict[str, object]] = []
    for token in answer:
        word = _library()[token : token + 1 + token % 6]
        logprob = -source.expovariate(2.0)
        entry = {"token": word, "logprob": logprob, "bytes": list(word.encode())}
        logprobs.append({**entry, "top_logprobs": []})
    return _Tokens(prompt, answer, logprobs)


def _usage(case: Case, turn: int) -> dict[str, object]:
    prompt = len(_tokens(case, turn).prompt) if case.ids else case.size // 4
    answer = case.ids or case.chunks or case.answer // 4
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + answer,
        "completion_tokens": answer,
        "prompt_tokens_details": None,
    }


def whole_reply(case: Case, turn: int) -> bytes:
    """The upstream's JSON answer, in vLLM's format."""
    message = {
        "role": "assistant",
        "content": _answer(case, turn),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [_call(turn)] if _calls_tools(case) else [],
        "reasoning_content": None,
    }
    tokens = _tokens(case, turn) if case.ids else None
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": tokens.logprobs} if tokens else None,
        "finish_reason": "tool_calls" if _calls_tools(case) else "stop",
        "stop_reason": None,
        "token_ids": tokens.answer if tokens else None,
    }
    answer = {
        "id": f"chatcmpl-{case.name}-{turn}",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "policy",
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _usage(case, turn),
        "prompt_logprobs": None,
        "prompt_token_ids": tokens.prompt if tokens else None,
        "kv_transfer_params": None,
    }
    return msgspec.json.encode(answer)


def reply_events(case: Case, turn: int) -> list[bytes]:
    """The events of a streamed answer: `chunks` pieces of text, finish reason, usage, end."""
    base = {
        "id": f"chatcmpl-{case.name}-{turn}",
        "object": "chat.completion.chunk",
        "created": 1_750_000_000,
        "model": "policy",
    }
    tokens = _tokens(case, turn) if case.ids else None

    def event(delta: dict[str, object], number: int, finish: str | None = None) -> bytes:
        choice: dict[str, object] = {"index": 0, "delta": delta, "logprobs": None}
        choice |= {"finish_reason": finish, "token_ids": None}
        if tokens and 0 <= number < case.ids:
            choice["logprobs"] = {"content": [tokens.logprobs[number]]}
            choice["token_ids"] = [tokens.answer[number]]
        chunk = {**base, "choices": [choice]}
        if number < 0:
            chunk["prompt_token_ids"] = tokens.prompt if tokens else None  # type: ignore[assignment]
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    text = _answer(case, turn).removesuffix(LAST_WORD)
    step = len(text) / (case.chunks - 1)
    pieces = [text[int(n * step) : int((n + 1) * step)] for n in range(case.chunks - 1)]
    events = [event({"role": "assistant", "content": ""}, -1)]
    events += [event({"content": piece}, n) for n, piece in enumerate([*pieces, LAST_WORD])]
    events.append(event({}, case.chunks, "stop"))
    usage = {**base, "choices": [], "usage": _usage(case, turn)}
    return [*events, b"data: " + msgspec.json.encode(usage) + b"\n\n", b"data: [DONE]\n\n"]
