"""Limits on the values, messages, parts, tools and stop sequences of a request."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects import size_limits
from plimsoll.gateway.dialects.registry import CHAT, MESSAGES, RESPONSES
from plimsoll.gateway.dialects.size_limits import check_values

LIMIT = 12
TRICKY = st.text(alphabet='a,{["\\\u00e9 ', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TRICKY,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TRICKY, inner, max_size=8),
    max_leaves=20,
)


def _count(value: object) -> int:
    """Commas and opening brackets, and the value itself."""
    match value:
        case dict():
            inner = [*value.values()]
        case list():
            inner = value
        case _:
            return 0
    return 1 + max(len(inner) - 1, 0) + sum(map(_count, inner))


@given(VALUES)
def test_values_are_counted_without_those_in_texts(value: object):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_limits, "MAX_VALUES", LIMIT)
        for ascii in (True, False):
            body = json.dumps(value, ensure_ascii=ascii).encode()
            if 1 + _count(value) > LIMIT:
                with pytest.raises(Refusal) as refused:
                    check_values(body)
                assert refused.value.kind == "too_large"
            else:
                check_values(body)


def test_a_text_may_hold_more_commas_and_brackets_than_a_body_may_hold_values():
    text = json.dumps([{"a": [1, 2]}] * 200_000) * 2
    request = CHAT.read(json.dumps({"model": "m", "messages": [_user(text)]}).encode())
    assert request.history.message(0).text == text


def _user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


TEXT = {"type": "text", "text": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CASES = {
    "messages": (CHAT, 10_000, lambda n: {"messages": [_user("x")] * n}),
    "parts": (CHAT, 4_096, lambda n: {"messages": [_user([TEXT] * n)]}),
    "calls": (
        CHAT,
        4_096,
        lambda n: {"messages": [{"role": "assistant", "tool_calls": [CALL] * n}]},
    ),
    "tools": (CHAT, 1_000, lambda n: {"messages": [_user("x")], "tools": [{}] * n}),
    "stop": (CHAT, 256, lambda n: {"messages": [_user("x")], "stop": ["x"] * n}),
    "input": (RESPONSES, 10_000, lambda n: {"input": [_user("x")] * n}),
    "input parts": (
        RESPONSES,
        4_096,
        lambda n: {"input": [_user([{"type": "input_text", "text": "x"}] * n)]},
    ),
    "summaries": (
        RESPONSES,
        4_096,
        lambda n: {"input": [{"type": "reasoning", "summary": [{"type": "summary_text"}] * n}]},
    ),
    "added tools": (
        RESPONSES,
        1_000,
        lambda n: {
            "input": [
                {"type": "additional_tools", "tools": [{"type": "function", "name": f"f{i}"}]}
                for i in range(n)
            ]
        },
    ),
    "turns": (MESSAGES, 10_000, lambda n: {"messages": [_user("x")] * n}),
    "blocks": (MESSAGES, 4_096, lambda n: {"messages": [_user([TEXT] * n)]}),
    "nested blocks": (
        MESSAGES,
        4_096,
        lambda n: {
            "messages": [
                _user([{"type": "tool_result", "tool_use_id": "c", "content": [TEXT] * n}])
            ]
        },
    ),
    "system": (MESSAGES, 4_096, lambda n: {"messages": [_user("x")], "system": [TEXT] * n}),
    "stop_sequences": (
        MESSAGES,
        256,
        lambda n: {"messages": [_user("x")], "stop_sequences": ["x"] * n},
    ),
    "schemas": (
        MESSAGES,
        1_000,
        lambda n: {
            "messages": [_user("x")],
            "tools": [{"name": f"f{i}", "input_schema": {}} for i in range(n)],
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_maximum_of_elements_is_read_and_one_more_is_refused(case: str):
    dialect, most, make = CASES[case]

    def read(count: int) -> None:
        request = dialect.read(json.dumps({"model": "m", **make(count)}).encode())
        for index in range(len(request.history)):
            request.history.message(index)

    read(most)
    with pytest.raises(Refusal, match=f"{most:,}") as refused:
        read(most + 1)
    assert refused.value.kind == "too_large"
    assert refused.value.param


def test_a_refusal_quotes_only_the_beginning_of_the_input():
    tool = {"type": "x" * 100_000}
    body = {"model": "m", "input": "hi", "tools": [tool]}
    with pytest.raises(Refusal) as refused:
        RESPONSES.read(json.dumps(body).encode())
    assert len(refused.value.message) < 3_000
