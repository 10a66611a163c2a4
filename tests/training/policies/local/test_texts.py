"""Prompts, remembered answers and detokenization."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_model import CHAT_WITH_TOOLS, END, make_model

from plimsoll.gateway.chat_server.inference_engine import RequestError
from plimsoll.training.models import load_tokenizer
from plimsoll.training.policies.local import prompts as prompts_file
from plimsoll.training.policies.local.completions import Detokenizer
from plimsoll.training.policies.local.prompts import Prompts

TEXT = "naïve 漢字 🚢 é"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("m"), alphabet="bytes", template=CHAT_WITH_TOOLS)


@pytest.fixture
def prompts(folder: Path) -> Prompts:
    tokenizer = load_tokenizer(folder)
    return Prompts(tokenizer, frozenset({tokenizer.convert_tokens_to_ids(END)}))


@pytest.fixture
def ids(folder: Path):
    tokenizer = load_tokenizer(folder)
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_character_is_emitted_with_its_last_byte(prompts, ids):
    detokenizer = Detokenizer(prompts.text)
    pieces = [detokenizer.add(token) for token in ids(TEXT)]
    assert "".join(pieces) == TEXT
    assert "\ufffd" not in "".join(pieces)
    assert len(pieces) == len(TEXT.encode())


def test_invalid_bytes_are_emitted_at_the_end(prompts, ids):
    detokenizer = Detokenizer(prompts.text)
    pieces = [detokenizer.add(token) for token in ids("é🚢")[:-1]]
    assert "".join(pieces) == "é"
    assert detokenizer.end() == "\ufffd"


def detokenize(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    detokenizer = Detokenizer(lambda ids: "".join(map(chr, ids)), stop)
    emitted = ""
    for letter in text:
        emitted += detokenizer.add(ord(letter))
        if detokenizer.stopped:
            return emitted, True
    return emitted + detokenizer.end(), detokenizer.stopped


@pytest.mark.parametrize(
    ("text", "stop", "emitted"),
    [
        ("abcdef", ["cd"], "ab"),
        ("abcdef", ["ef", "bc"], "a"),
        ("abab", ["abx"], "abab"),
        ("aab", ["ab"], "a"),
        ("abc", ["abc"], ""),
        ("abc", ["abcd"], "abc"),
    ],
)
def test_a_stop_text_and_the_text_after_it_are_not_emitted(text, stop, emitted):
    assert detokenize(text, stop) == (emitted, emitted != text)


def test_an_answer_sent_back_has_its_sampled_tokens(prompts, ids):
    prompt = prompts.render(HELLO, None)
    assert prompt.ids == ids(prompt.text)
    # The policy sampled the marker letter by letter, unlike the tokenizer.
    sampled = [*ids("say "), *(ids(letter)[0] for letter in "<|start|>"), *ids(END)]
    prompts.remember(prompt, sampled)
    answer = {"role": "assistant", "content": "say <|start|>"}
    longer = prompts.render([*HELLO, answer, *HELLO], None)
    assert longer.ids[: len(prompt.ids) + len(sampled)] == [*prompt.ids, *sampled]
    assert longer.text.startswith(prompt.text + "say <|start|>" + END)
    assert longer.ids != ids(longer.text)
    assert prompts.text(longer.ids) == longer.text


def test_a_truncated_answer_sent_back_has_its_sampled_tokens(prompts, ids):
    prompt = prompts.render(HELLO, None)
    sampled = [ids(letter)[0] for letter in "<|start|"]
    sampled += ids(">")
    prompts.remember(prompt, sampled)
    longer = prompts.render([*HELLO, {"role": "assistant", "content": "<|start|>"}, *HELLO], None)
    assert longer.ids[: len(prompt.ids) + len(sampled)] == [*prompt.ids, *sampled]


def test_a_changed_answer_is_tokenized_again(prompts, ids):
    prompt = prompts.render(HELLO, None)
    prompts.remember(prompt, [*ids("say"), *ids(END)])
    longer = prompts.render([*HELLO, {"role": "assistant", "content": "says"}, *HELLO], None)
    assert longer.ids == ids(longer.text)


def test_the_number_of_remembered_tokens_is_bounded(prompts, ids, monkeypatch):
    monkeypatch.setattr(prompts_file, "MAX_TOKENS", 100)
    for number in range(20):
        prompt = prompts.render([{"role": "user", "content": f"{number}"}], None)
        prompts.remember(prompt, ids(f"answer{END}"))
        prompts.remember(prompt, ids(f"answer{END}"))
    remembered = prompts._remembered
    assert sum(map(len, remembered.values())) == prompts._token_count <= 100


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "robot", "content": "x"}, "no such role: robot"),
        ({"content": "x"}, "rejects the conversation"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "accepts text only"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}, "not JSON"),
    ],
)
def test_a_conversation_that_the_template_rejects_is_refused(prompts, message, reason):
    with pytest.raises(RequestError, match=reason):
        prompts.render([message], None)


def test_tools_and_calls_are_rendered(prompts):
    call = {"id": "1", "function": {"name": "now", "arguments": '{"zone": "é"}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = prompts.render(messages, [{"name": "now"}]).text
    assert '{"name": "now"}' in text
    assert '<tool_call>{"name": "now", "arguments": {"zone": "é"}}</tool_call>' in text
