import json

import pytest

from plimsoll.gateway.upstreams.answers import StreamReader, cut_answer, read_answer
from plimsoll.gateway.upstreams.failures import UpstreamFailure

TRICKY = 'a "prompt_token_ids":[1] "logprobs":{"content":[ ]},"finish_reason": \\" ]'


def answer(text, *, compact=True, where="top"):
    logprobs = [{"token": t, "logprob": -0.5, "bytes": [1], "top_logprobs": []} for t in text[:4]]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": logprobs},
        "finish_reason": "stop",
        "token_ids": [1, 2, 3, 4],
    }
    body = {"id": "a", "choices": [choice]}
    (body if where == "top" else choice)["prompt_token_ids"] = [7, 8, 9]
    return json.dumps(body, separators=(",", ":") if compact else None).encode()


@pytest.mark.parametrize("where", ["top", "choice"])
@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("text", ["hello", TRICKY, ']},"finish_reason":', "[]]}"])
def test_an_answer_is_the_same_with_and_without_the_cut(text, compact, where):
    read = read_answer("u", answer(text, compact=compact, where=where))
    assert read.message.text == text
    assert read.finish == "stop"
    assert read.tokens
    assert json.loads(bytes(read.tokens.prompt)) == [7, 8, 9]
    assert read.tokens.answer == [1, 2, 3, 4]
    assert read.tokens.logprobs == [-0.5] * 4


@pytest.mark.parametrize("after", [[], [1], {"of": [[2]]}, "]", "["])
def test_ids_are_found_in_any_position(after):
    body = {**json.loads(answer("hello")), "more": after}
    read = read_answer("u", json.dumps(body, separators=(",", ":")).encode())
    assert json.loads(bytes(read.tokens.prompt)) == [7, 8, 9]
    assert read.message.text == "hello"


def test_the_cut_does_not_merge_two_choices():
    body = json.loads(answer("hello"))
    body["choices"].append(json.loads(answer("other"))["choices"][0] | {"finish_reason": "length"})
    with pytest.raises(UpstreamFailure, match="several choices"):
        read_answer("u", json.dumps(body, separators=(",", ":")).encode())


def test_removed_parts_are_replaced_by_null():
    parts = cut_answer(answer(TRICKY))
    left = json.loads(parts.data)
    assert left["prompt_token_ids"] is None
    assert left["choices"][0]["logprobs"] is None
    assert left["choices"][0]["message"]["content"] == TRICKY
    assert len(json.loads(bytes(parts.logprobs))["content"]) == 4


@pytest.mark.parametrize("data", [b"", b"{}", b'{"prompt_token_ids":', b'{"prompt_token_ids":[1'])
def test_truncated_data_is_left_unchanged(data):
    assert cut_answer(data).data == data


def test_ids_in_the_choice_are_found_beside_a_top_level_null():
    body = json.loads(answer("yes", where="choice"))
    data = json.dumps({"prompt_token_ids": None, **body}, separators=(",", ":")).encode()
    assert json.loads(bytes(read_answer("u", data).tokens.prompt)) == [7, 8, 9]


@pytest.mark.parametrize("where", ["top", "choice"])
def test_ids_in_an_unusual_layout_are_parsed(where):
    data = answer("yes", where=where).replace(b'ids":', b'ids"\n: ')
    assert json.loads(bytes(read_answer("u", data).tokens.prompt)) == [7, 8, 9]


def test_a_wrong_cut_falls_back_to_parsing_everything():
    body = json.loads(answer("hello"))
    choice = body["choices"][0]
    logprobs = {**choice.pop("logprobs"), "refusal": None}
    # The text after the log probabilities looks like their end.
    body["choices"] = [{"logprobs": logprobs, "of": {"another": []}, "finish_reason": "stop"}]
    body["choices"][0].update(choice)
    data = json.dumps(body, separators=(",", ":")).encode()
    assert b"another" in bytes(cut_answer(data).logprobs)
    assert read_answer("u", data).tokens.logprobs == [-0.5] * 4


def piece(delta, choice=None, **fields):
    return json.dumps({"choices": [{"delta": delta, **(choice or {})}], **fields}).encode()


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("where", ["top", "choice"])
def test_the_prompts_ids_are_found_in_any_piece_of_a_stream(at, where):
    reader = StreamReader("u")
    ids = {"prompt_token_ids": [7, 8, 9]}
    more = ids if where == "top" else {"choice": ids}
    pieces = [piece({"content": str(n)}, **(more if n == at else {})) for n in range(3)]
    read = [reader.read(data) for data in pieces]
    assert [chunk.text for chunk in read] == ["0", "1", "2"]
    assert [chunk.prompt_ids is not None for chunk in read] == [n == at for n in range(3)]
    assert json.loads(bytes(read[at].prompt_ids)) == [7, 8, 9]
    assert b"[7" not in read[at].data
