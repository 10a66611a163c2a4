"""Lone surrogates, which programs in JavaScript produce when they cut a text."""

import json
import time

import pytest

from plimsoll.core.text import replace_lone_surrogates
from plimsoll.gateway.dialects.registry import DIALECTS

FIRST, SECOND = "\ud83d", "\ude00"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain \n\t\u20ac", "plain \n\t\u20ac"),
        (FIRST + SECOND, FIRST + SECOND),
        (f"cut {FIRST}", "cut \ufffd"),
        (f"{SECOND} cut", "\ufffd cut"),
        (FIRST + FIRST + SECOND, "\ufffd" + FIRST + SECOND),
        (f"\\{FIRST}", "\\\ufffd"),
        ("\\ud83d", "\\ud83d"),
    ],
)
def test_a_lone_surrogate_is_replaced_and_everything_else_stays(text: str, left: str):
    body = json.dumps(text).encode()
    assert json.loads(replace_lone_surrogates(body)) == json.loads(json.dumps(left))
    assert (replace_lone_surrogates(body) is body) == (text == left)


@pytest.mark.parametrize("start", [b"", rb"\ud83d"])
def test_invalid_bytes_are_rejected_quickly(start: bytes):
    body = start + b"\\" * (16 << 20)
    began = time.process_time()
    replace_lone_surrogates(body)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("path", DIALECTS)
def test_a_history_with_a_lone_surrogate_is_answered(path: str):
    conversation = [{"role": "user", "content": f"cut {FIRST}"}]
    field = "input" if path.endswith("responses") else "messages"
    request = DIALECTS[path].read(json.dumps({"model": "m", field: conversation}).encode())
    assert request.history.message(0).text == "cut \ufffd"
    (sent,) = json.loads(bytes(request.messages))
    assert sent["content"] == "cut \ufffd"
