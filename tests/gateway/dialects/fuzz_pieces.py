"""Valid bodies for each dialect, and mutations of them."""

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

__all__ = ["VALID", "any_json", "corrupted_body"]

_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
_IMAGE = "data:image/png;base64,AAAA"

_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": _IMAGE}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    ],
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": _SCHEMA}}],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "n": 1,
    "temperature": 0.5,
    "max_tokens": 100,
}

_RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "be brief",
    "input": [
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]},
        {"role": "developer", "content": "be kind"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": _IMAGE},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "+ a"},
        {
            "type": "local_shell_call",
            "call_id": "c3",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "a.txt"}],
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
    ],
    "tools": [
        {"type": "function", "name": "bash", "strict": True, "parameters": _SCHEMA},
        {
            "type": "custom",
            "name": "patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: a"},
        },
        {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "f"}]},
        {"type": "local_shell"},
    ],
    "tool_choice": {"type": "function", "name": "bash"},
    "parallel_tool_calls": True,
    "max_output_tokens": 100,
    "temperature": 0.5,
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
    "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "background": False,
    "previous_response_id": None,
    "stream": True,
}

_MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "a.txt"}],
                }
            ],
        },
    ],
    "tools": [{"name": "bash", "description": "Runs.", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["stop"],
    "temperature": 0.5,
    "top_k": 5,
    "metadata": {"user_id": "u"},
    "stream": True,
}

VALID = {"chat": _CHAT, "responses": _RESPONSES, "messages": _MESSAGES}

_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
any_json = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)

_ODD = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 4000,
    b"-0",
    b"1.0",
    b'"\\ud800"',
    b'"\\ud83d\\u0041"',
    b'"\\x"',
    b'"\\u12"',
    b'"a\x01b"',
    b'"\x7f\xff"',
    b"tru",
    b"",
    b'{"type":1,"type":"text"}',
    b'{"a":1,}',
    b"[" * 10_000 + b"]" * 10_000,
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b'"' + b"a" * 20_000 + b'"',
]
"""Values that no encoder writes, each in the place of a value."""

_MARKER = "@@ here @@"


def _paths(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [at] if at else []
    if isinstance(value, dict):
        for key, inner in value.items():  # type: ignore[reportUnknownVariableType]
            found += _paths(inner, (*at, key))  # type: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for index, inner in enumerate(value):  # type: ignore[reportUnknownArgumentType]
            found += _paths(inner, (*at, index))
    return found


def _at(value: Any, way: Sequence[str | int]) -> Any:
    for step in way:
        value = value[step]
    return value


@st.composite
def corrupted_body(draw: st.DrawFn, dialect: str) -> bytes:
    """A valid body with one or two values removed, replaced, moved, duplicated or malformed."""
    body = deepcopy(VALID[dialect])
    odd = b"null"
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(_paths(body)))
        holder = _at(body, way)
        match draw(st.sampled_from(["drop", "retype", "odd", "twice", "move"])):
            case "drop":
                del holder[last]
            case "retype":
                holder[last] = draw(any_json)
            case "move":
                elsewhere = draw(st.sampled_from(_paths(VALID[dialect])))
                holder[last] = deepcopy(_at(VALID[dialect], elsewhere))
            case "twice" if isinstance(last, str):
                odd = b'"first",' + json.dumps(last).encode() + b":" + _text(holder[last])
                holder[last] = _MARKER
            case _:
                odd = draw(st.sampled_from(_ODD))
                holder[last] = _MARKER
    return _text(body).replace(_text(_MARKER), odd)


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()
