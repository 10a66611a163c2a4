"""Any input to any dialect yields a request or a refusal, in bounded time."""

import json
from time import process_time
from typing import Any

import msgspec
import pytest
from fuzz_pieces import VALID, any_json, corrupted_body
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_pieces import an_answer

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.dialects.registry import DIALECTS
from plimsoll.trajectories.messages import Message

each_dialect = pytest.mark.parametrize(
    "dialect", DIALECTS.values(), ids=lambda dialect: dialect.name
)
fuzzed = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def is_accepted(dialect: Dialect, body: bytes) -> bool:
    """True if the body is accepted. All results must be valid JSON."""
    try:
        request = dialect.read(body)
        for index in range(len(request.history)):
            assert len(request.history.key(index)) == 16
            assert isinstance(request.history.message(index), Message)
    except Refusal as refusal:
        msgspec.json.decode(dialect.refuse(refusal))
        return False
    assert isinstance(parse_strictly(request.messages), list)
    for raw in (request.tools or b"null", *request.settings.values()):
        parse_strictly(raw)
    msgspec.json.decode(dialect.write(request, an_answer("hello", reasoning="hm")))
    dialect.stream(request).whole(an_answer("hello", reasoning="hm"))
    return True


def parse_strictly(raw: bytes | msgspec.Raw) -> Any:
    """Parse as an upstream does; no server accepts more than Python does."""

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(bytes(raw), parse_constant=constant)


@each_dialect
def test_a_valid_body_is_accepted(dialect: Dialect):
    assert is_accepted(dialect, json.dumps(VALID[dialect.name]).encode())


@each_dialect
@fuzzed
@given(data=st.data())
def test_a_mutated_body_gets_a_request_or_a_refusal(dialect: Dialect, data: st.DataObject):
    is_accepted(dialect, data.draw(corrupted_body(dialect.name)))


@each_dialect
@fuzzed
@given(body=any_json)
def test_any_json_gets_a_request_or_a_refusal(dialect: Dialect, body: Any):
    is_accepted(dialect, json.dumps(body).encode())


@each_dialect
@fuzzed
@given(data=st.data())
def test_any_bytes_get_a_request_or_a_refusal(dialect: Dialect, data: st.DataObject):
    is_accepted(dialect, data.draw(st.binary(max_size=40)))
    good = json.dumps(VALID[dialect.name]).encode()
    at = data.draw(st.integers(0, len(good) - 1))
    junk = data.draw(st.binary(max_size=4))
    assert not is_accepted(dialect, good[:at])
    is_accepted(dialect, good[:at] + junk + good[at + len(junk) :])


@each_dialect
@pytest.mark.parametrize("depth", [900, 10_000, 200_000])
def test_an_endlessly_nested_body_is_refused(dialect: Dialect, depth: int):
    for opens, closes in ((b"[", b"]"), (b'{"a":', b"}")):
        for inner in (b"1", b""):
            assert not is_accepted(dialect, opens * depth + inner + closes * depth)
            assert not is_accepted(dialect, opens * depth)


_UNIT: dict[str, tuple[str, Any]] = {
    "chat": ("messages", {"role": "user", "content": [{"type": "text", "text": "a\\n" * 20}]}),
    "messages": ("messages", {"role": "user", "content": [{"type": "text", "text": "a\\n" * 20}]}),
    "responses": ("input", {"role": "assistant", "content": "a\\n" * 20}),
}


@each_dialect
def test_reading_takes_time_in_proportion_to_the_body(dialect: Dialect):
    field, unit = _UNIT[dialect.name]

    def seconds(count: int) -> float:
        body = json.dumps({"model": "m", field: [unit] * count}).encode()

        def once() -> float:
            began = process_time()
            is_accepted(dialect, body)
            return process_time() - began

        return min(once() for _ in range(3))

    # A body four times as long; quadratic work would take sixteen times as long. One success is
    # enough: other load may slow one of the two down.
    assert any(seconds(4000) < 9 * seconds(1000) for _ in range(10))
