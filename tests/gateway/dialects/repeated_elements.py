"""Requests with many repetitions of one element, for every list that a dialect reads."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.dialects.registry import CHAT, MESSAGES, RESPONSES

__all__ = ["KINDS", "Kind"]

TEXT = "some words, and more, " * 20
"""Long enough for repeated work per element to show."""
Elements = list[Any]
Body = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of element that makes a request longer."""

    name: str
    dialect: Dialect
    make: Callable[[int], Body]
    most: int
    """The maximum number of elements that the dialect reads."""

    def body(self, count: int) -> bytes:
        return json.dumps(self.make(count)).encode()


def _chat(messages: Elements, **more: Any) -> Body:
    return {"model": "m", "messages": messages, **more}


def _responses(given: Elements, **more: Any) -> Body:
    return {"model": "m", "input": given, **more}


def _messages(turns: Elements, **more: Any) -> Body:
    return {"model": "m", "max_tokens": 9, "messages": turns, **more}


def _user(content: Any = TEXT) -> Body:
    return {"role": "user", "content": content}


def _item(content: Any, role: str = "user") -> Body:
    return {"type": "message", "role": role, "content": content}


def _call(number: int, arguments: str) -> Body:
    function = {"name": "f", "arguments": arguments}
    return {"id": f"c{number}", "type": "function", "function": function}


def _function(number: int) -> Body:
    return {"name": f"f{number}", "description": TEXT, "parameters": {"type": "object"}}


def _fields(count: int) -> Body:
    return {f"field_{number}": TEXT for number in range(count)}


def _image(number: int) -> Body:
    return {"url": f"data:image/png;base64,{number}{TEXT}"}


PNG = {"type": "base64", "media_type": "image/png", "data": TEXT}
USE = {"type": "tool_use", "name": "f", "input": {"text": TEXT}}


def _blocks(make: Callable[[int], Body], role: str = "user") -> Callable[[int], Body]:
    return lambda n: _messages([_user("hi"), {"role": role, "content": list(map(make, range(n)))}])


def _results(make: Callable[[int], Body], of: str = "c") -> Callable[[int], Body]:
    def body(count: int) -> Body:
        uses = [{**USE, "id": f"c{number}"} for number in range(count)]
        results = [
            {"type": "tool_result", "tool_use_id": f"{of}{number}", **make(number)}
            for number in range(count)
        ]
        answer = {"role": "assistant", "content": uses}
        return _messages([_user(), answer, {"role": "user", "content": results}])

    return body


def _nested(make: Callable[[int], Body]) -> Callable[[int], Body]:
    def body(count: int) -> Body:
        result = {
            "type": "tool_result",
            "tool_use_id": "c",
            "content": list(map(make, range(count))),
        }
        return _messages([_user([result])])

    return body


CHAT_KINDS: dict[str, Callable[[int], Body]] = {
    "messages": lambda n: _chat([_user() for _ in range(n)]),
    "messages of developers": lambda n: _chat([{**_user(), "role": "developer"}] * n),
    "answers": lambda n: _chat([{"role": "assistant", "content": TEXT}] * n),
    "results": lambda n: _chat([{**_user(), "role": "tool", "tool_call_id": "c"}] * n),
    "text parts": lambda n: _chat([_user([{"type": "text", "text": TEXT}] * n)]),
    "refusal parts": lambda n: _chat([_user([{"type": "refusal", "refusal": TEXT}] * n)]),
    "image parts": lambda n: _chat(
        [_user([{"type": "image_url", "image_url": _image(i)} for i in range(n)])]
    ),
    "audio parts": lambda n: _chat(
        [_user([{"type": "input_audio", "input_audio": {"data": "ab" * 200, "format": "wav"}}] * n)]
    ),
    "tool calls": lambda n: _chat(
        [
            {
                "role": "assistant",
                "tool_calls": [_call(i, json.dumps({"text": TEXT})) for i in range(n)],
            }
        ]
    ),
    "broken tool calls": lambda n: _chat(
        [{"role": "assistant", "tool_calls": [_call(i, '{"text": ') for i in range(n)]}]
    ),
    "values of arguments": lambda n: _chat(
        [{"role": "assistant", "tool_calls": [_call(0, json.dumps({"text": [TEXT] * n}))]}]
    ),
    "halves of characters": lambda n: _chat([_user("\ud83d x" * n)]),
    "escapes": lambda n: _chat([_user('"\\' * n * 20)]),
    "tools": lambda n: _chat(
        [_user()], tools=[{"type": "function", "function": _function(i)} for i in range(n)]
    ),
    "stop sequences": lambda n: _chat([_user()], stop=[TEXT] * n),
    "unknown fields": lambda n: _chat([_user()], **_fields(n)),
}

RESPONSES_KINDS: dict[str, Callable[[int], Body]] = {
    "messages": lambda n: _responses([_item(TEXT)] * n),
    "messages of developers": lambda n: _responses([_item(TEXT, "developer")] * n),
    "answers": lambda n: _responses([_item(TEXT, "assistant")] * n),
    "text parts": lambda n: _responses([_item([{"type": "input_text", "text": TEXT}] * n)]),
    "parts of answers": lambda n: _responses(
        [_item([{"type": "output_text", "text": TEXT}] * n, "assistant")]
    ),
    "image parts": lambda n: _responses(
        [_item([{"type": "input_image", "image_url": _image(i)["url"]} for i in range(n)])]
    ),
    "audio parts": lambda n: _responses(
        [_item([{"type": "input_audio", "input_audio": {"data": "ab" * 200}}] * n)]
    ),
    "reasoning": lambda n: _responses(
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": TEXT}]}] * n
    ),
    "summaries": lambda n: _responses(
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": TEXT}] * n}]
    ),
    "calls": lambda n: _responses(
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": TEXT}] * n
    ),
    "custom calls": lambda n: _responses(
        [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": TEXT}] * n
    ),
    "shell calls": lambda n: _responses(
        [{"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls", TEXT]}}] * n
    ),
    "words of a shell call": lambda n: _responses(
        [{"type": "local_shell_call", "call_id": "c", "action": {"command": [TEXT] * n}}]
    ),
    "outputs": lambda n: _responses(
        [{"type": "function_call_output", "call_id": "c", "output": TEXT}] * n
    ),
    "parts of outputs": lambda n: _responses(
        [
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": TEXT}, {"type": "input_audio"}]
                * (n // 2),
            }
        ]
    ),
    "lists of tools": lambda n: _responses(
        [
            {"type": "additional_tools", "tools": [{"type": "function", **_function(i)}]}
            for i in range(n)
        ]
    ),
    "tools": lambda n: _responses(
        [_item("hi")], tools=[{"type": "function", **_function(i)} for i in range(n)]
    ),
    "tools of a namespace": lambda n: _responses(
        [_item("hi")],
        tools=[
            {
                "type": "namespace",
                "name": "n",
                "tools": [{"type": "function", **_function(i)} for i in range(n)],
            }
        ],
    ),
    "unknown fields": lambda n: _responses([_item("hi")], **_fields(n)),
    "metadata": lambda n: _responses([_item("hi")], metadata=_fields(n)),
    "include": lambda n: _responses([_item("hi")], include=[TEXT] * n),
}

MESSAGES_KINDS: dict[str, Callable[[int], Body]] = {
    "turns": lambda n: _messages([_user(), {"role": "assistant", "content": TEXT}] * (n // 2)),
    "turns of one role": lambda n: _messages([_user()] * n),
    "turns of the system": lambda n: _messages([{"role": "system", "content": TEXT}] * n),
    "text blocks": _blocks(lambda _: {"type": "text", "text": TEXT}),
    "text blocks of answers": _blocks(lambda _: {"type": "text", "text": TEXT}, "assistant"),
    "images": _blocks(lambda _: {"type": "image", "source": PNG}),
    "documents": _blocks(
        lambda _: {"type": "document", "source": {"type": "text", "data": TEXT}, "title": "t"}
    ),
    "blocks of a document": lambda n: _messages(
        [
            _user(
                [
                    {
                        "type": "document",
                        "source": {
                            "type": "content",
                            "content": [{"type": "text", "text": TEXT}] * n,
                        },
                    }
                ]
            )
        ]
    ),
    "search results": _blocks(
        lambda _: {"type": "search_result", "title": "t", "source": "s", "content": []}
    ),
    "texts of a search result": lambda n: _messages(
        [
            _user(
                [
                    {
                        "type": "search_result",
                        "title": "t",
                        "source": "s",
                        "content": [{"type": "text", "text": TEXT}] * n,
                    }
                ]
            )
        ]
    ),
    "tool references": _blocks(lambda _: {"type": "tool_reference", "tool_name": TEXT}),
    "thoughts": _blocks(lambda _: {"type": "thinking", "thinking": TEXT}, "assistant"),
    "tool uses": _blocks(lambda i: {**USE, "id": f"c{i}"}, "assistant"),
    "tool results": _results(lambda _: {"content": TEXT}),
    "tool results without a call": _results(lambda _: {"content": TEXT}, of="other"),
    "blocks of a tool result": _nested(lambda _: {"type": "text", "text": TEXT}),
    "images of a tool result": _nested(lambda _: {"type": "image", "source": PNG}),
    "system blocks": lambda n: _messages([_user()], system=[{"type": "text", "text": TEXT}] * n),
    "tools": lambda n: _messages(
        [_user()],
        tools=[{"name": f"f{i}", "description": TEXT, "input_schema": {}} for i in range(n)],
    ),
    "stop sequences": lambda n: _messages([_user()], stop_sequences=[TEXT] * n),
    "unknown fields": lambda n: _messages([_user()], **_fields(n)),
}

FEWER = {
    "tools": 1_000,
    "tools of a namespace": 999,
    "lists of tools": 1_000,
    "stop sequences": 256,
}

KINDS = [
    Kind(name, dialect, make, FEWER.get(name, 4_000))
    for dialect, kinds in (
        (CHAT, CHAT_KINDS),
        (RESPONSES, RESPONSES_KINDS),
        (MESSAGES, MESSAGES_KINDS),
    )
    for name, make in kinds.items()
]
