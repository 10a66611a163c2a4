import json

import pytest

from plimsoll.gateway.upstreams.answers import read_answer
from plimsoll.gateway.upstreams.cutting import cut

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
def test_an_answer_says_the_same_when_its_heavy_parts_are_cut_out(text, compact, where):
    read = read_answer("u", answer(text, compact=compact, where=where))
    assert read.message.text == text
    assert read.finish == "stop"
    assert read.tokens
    assert json.loads(bytes(read.tokens.prompt)) == [7, 8, 9]
    assert read.tokens.answer == [1, 2, 3, 4]
    assert read.tokens.logprobs == [-0.5] * 4


def test_what_is_cut_out_is_null_in_what_is_left():
    parts = cut(answer(TRICKY))
    left = json.loads(parts.data)
    assert left["prompt_token_ids"] is None
    assert left["choices"][0]["logprobs"] is None
    assert left["choices"][0]["message"]["content"] == TRICKY
    assert len(json.loads(bytes(parts.logprobs))["content"]) == 4


@pytest.mark.parametrize("data", [b"", b"{}", b'{"prompt_token_ids":', b'{"prompt_token_ids":[1'])
def test_what_ends_too_early_is_left_as_it_is(data):
    assert cut(data).data == data
