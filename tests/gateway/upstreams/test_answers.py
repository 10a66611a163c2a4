import ssl
from contextlib import suppress

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.gateway.upstreams.answers import StreamReader, read_answer
from plimsoll.gateway.upstreams.failures import (
    UpstreamFailure,
    failure_from_exception,
    failure_from_status,
)

MESSAGE = {"role": "assistant", "content": "yes"}


def body(message: object = MESSAGE, finish: object = "stop", **others: object) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return msgspec.json.encode({"id": "1", "choices": [choice], **others})


def calling(**function: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "refused"),
        ("eos_token", "stop"),
    ],
)
def test_each_finish_reason_is_mapped(reason, finish):
    assert read_answer("u", body(finish=reason)).finish == finish


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"<html>",
        b"\xff\xfe",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": null}',
        body(message={"content": 5}),
        body(message=calling(arguments="{}")),
        body(message=calling(name="", arguments="{}")),
        body(message=calling(name="ls")),
        body(message=calling(name="ls", arguments={"a": 1})),
        body(finish=None),
        body(finish="abort"),
        body(usage=[1]),
        body(id=5),
    ],
)
def test_an_invalid_answer_is_an_upstream_failure(data):
    with pytest.raises(UpstreamFailure) as failure:
        read_answer("http://there", data)
    assert failure.value.kind == "upstream"
    assert "http://there" in failure.value.message
    assert not failure.value.retryable


@pytest.mark.parametrize("indices", [(1,), (0, 1), (1, 0), (0, 0)])
def test_several_choices_are_invalid(indices):
    """Their tokens would be recorded as those of one."""
    whole = [{"index": index, "message": MESSAGE, "finish_reason": "stop"} for index in indices]
    with pytest.raises(UpstreamFailure, match="several choices"):
        read_answer("u", msgspec.json.encode({"choices": whole}))
    pieces = [{"index": index, "delta": {"content": "x"}} for index in indices]
    with pytest.raises(UpstreamFailure, match="several choices"):
        StreamReader("u").read(msgspec.json.encode({"choices": pieces}))


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
def test_a_single_choice_needs_no_index(index):
    whole = {"message": MESSAGE, "finish_reason": "stop", **index}
    assert read_answer("u", msgspec.json.encode({"choices": [whole]})).message.text == "yes"
    piece = {"delta": {"content": "x"}, **index}
    assert StreamReader("u").read(msgspec.json.encode({"choices": [piece]})).text == "x"


@given(st.binary(max_size=200))
def test_any_bytes_raise_only_a_failure(data):
    for read in (lambda: read_answer("u", data), lambda: StreamReader("u").read(data)):
        with suppress(UpstreamFailure):
            read()


def test_ids_in_the_log_probabilities_are_parsed():
    choice = {
        "message": MESSAGE,
        "finish_reason": "stop",
        "logprobs": {"content": [{"id": 7, "logprob": -1.0}, {"id": 8, "logprob": -2.0}]},
    }
    answer = read_answer("u", msgspec.json.encode({"choices": [choice]}))
    assert answer.tokens
    assert (answer.tokens.answer, answer.tokens.logprobs) == ([7, 8], [-1.0, -2.0])


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_parsed_under_both_names(name):
    assert read_answer("u", body({"content": "yes", name: "hm"})).message.reasoning == "hm"
    delta = {"choices": [{"delta": {name: "hm"}}]}
    assert StreamReader("u").read(msgspec.json.encode(delta)).reasoning == "hm"


def test_an_error_inside_a_stream_is_classified_by_its_code():
    error = {"error": {"message": "maximum context length is 5", "code": 400}}
    with pytest.raises(UpstreamFailure) as failure:
        StreamReader("u").read(msgspec.json.encode(error))
    assert failure.value.kind == "context_length"
    with pytest.raises(UpstreamFailure) as failure:
        StreamReader("u").read(b'{"error": "out of memory"}')
    assert failure.value.kind == "upstream" and "out of memory" in failure.value.message


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"error": {"message": "This model's maximum context length is 5 tokens."}}),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
        (
            400,
            {
                "object": "error",
                "message": "The input (9 tokens) is longer than the model's context length (5).",
            },
        ),
        (500, {"error": {"code": 500, "message": "n", "type": "exceed_context_size_error"}}),
        (
            400,
            {
                "error": {
                    "message": "the request exceeds the available context size, try increasing it"
                }
            },
        ),
        (422, {"detail": "Input exceeds the model's maximum context"}),
    ],
)
def test_a_too_long_conversation_is_recognized_for_each_server(status, error):
    assert failure_from_status("u", status, msgspec.json.encode(error)).kind == "context_length"


def test_other_bad_requests_carry_the_servers_message():
    failure = failure_from_status("u", 400, b'{"error": {"message": "temperature is negative"}}')
    assert (failure.kind, failure.message) == ("bad_request", "temperature is negative")
    assert not failure.replica_fault and not failure.retryable


def test_an_untrusted_certificate_is_reported():
    error = aiohttp.ClientConnectorCertificateError(None, ssl.CertificateError("x"))  # type: ignore[arg-type]
    assert "certificate" in failure_from_exception("u", error).message


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"<html>", b'{"error": null}', b"\xff"])
@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_a_meaningless_error_is_still_a_failure(status, data):
    assert failure_from_status("u", status, data).message
