import math

import msgspec
import pytest
from recording_parts import END, Spoken, Talk, assistant, done, generated, prompted, user

from plimsoll.core.versions import Version
from plimsoll.trajectories.graph import Graph
from plimsoll.trajectories.records import Exchange
from plimsoll.trajectories.reported_tokens import TokenIds
from plimsoll.trajectories.token_sequence import TokenSequence, text_of_ids

U, A = user("hello"), assistant("hi there")
V1, V2 = Version(0, 1), Version(0, 2)


def test_an_extension_stores_only_its_added_tokens(talk: Talk):
    talk.ask(U, answer=A)
    second = talk.ask(U, A, user("and"), answer=assistant("so"))
    assert second.branch == "extends"
    assert second.tokens is not None
    assert second.tokens.kept == len(prompted([U]) + generated(A))
    assert len(second.tokens.prompt) == 4 * len("5and36")


def test_tokens_that_do_not_begin_with_the_parents_are_marked(talk: Talk):
    thinking = assistant("hi there", reasoning="umm")
    talk.ask(U, answer=thinking)
    second = talk.ask(U, A, user("and"), answer=assistant("so"))
    assert second.branch == "retokenized"
    assert second.tokens is not None
    assert second.tokens.kept == len(prompted([U]))
    third = talk.ask(U, A, user("and"), assistant("so"), user("x"), answer=A)
    assert third.branch == "extends"


@pytest.mark.parametrize("cut", [1, 7, 12, 13])
def test_the_kept_prefix_ends_at_the_first_different_id(talk: Talk, cut: int):
    talk.ask(U, answer=A)
    prompt = prompted([U, A, user("and")])
    prompt[cut] = 9000
    second = talk.ask(
        U, A, user("and"), answer=A, tokens=TokenIds(prompt, [1], [-1.0]), answer_tokens=1
    )
    assert second.branch == "retokenized"
    assert second.tokens is not None
    assert second.tokens.kept == cut


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"[1,12]", b"1,12,"),
        (b"[ 1, 12 ]", b"1,12,"),
        (b"[1,\n12]", b"1,12,"),
        (b"[]", b""),
        (b"[ ]", b""),
    ],
)
def test_ids_have_one_text_form_whatever_their_spacing(raw: bytes, text: bytes):
    assert text_of_ids(msgspec.Raw(raw)) == text


@pytest.mark.parametrize("raw", [b"1", b"12", b"null", b'"1,2"', b'{"a":1}', b"[ x]", b""])
def test_an_invalid_list_of_ids_is_rejected(raw: bytes):
    with pytest.raises(msgspec.DecodeError):
        text_of_ids(msgspec.Raw(raw))


def test_ids_that_begin_with_the_same_digits_are_not_the_same():
    line = TokenSequence(None, 0, text_of_ids([1, 12]), text_of_ids([345]), 3)
    assert line.common(text_of_ids([1, 12, 3456])).ids == 2
    assert line.common(text_of_ids([1, 123, 345])).ids == 1
    assert line.common(text_of_ids([1, 1])).ids == 1
    assert line.common(text_of_ids([])).ids == 0
    assert line.common(text_of_ids([1, 12, 345, 6])).ids == 3


@pytest.mark.parametrize("raw", [b"[1,12,345]", b"[1, 12, 345]", b"[ 1,\n 12,345 ]"])
def test_ids_as_json_of_any_layout_are_the_same(raw: bytes):
    assert text_of_ids(msgspec.Raw(raw)) == text_of_ids([1, 12, 345])


async def test_ids_as_json_and_as_numbers_are_recorded_alike(talk: Talk):
    prompts = [[U], [U, A, user("and")], [U, A, user("and"), A, user("on")]]
    for text, prompt in zip((True, False, True), prompts, strict=True):
        talk.ask(*prompt, answer=A, text=text)
    trajectory = await talk.close()
    for exchange, prompt in zip(trajectory.exchanges, prompts, strict=True):
        assert list(trajectory.ids_of(exchange)) == prompted(prompt)
    assert [one.branch for one in trajectory.exchanges] == ["start", "extends", "extends"]


UNRELIABLE = {
    "no ids": ({"tokens": None}, "returned no token ids"),
    "no ids of the prompt": ({"tokens": TokenIds(None, [1], [-1.0])}, "no token ids of the prompt"),
    "too few ids of the answer": (
        {"tokens": TokenIds(prompted([U]), [1], [-1.0]), "answer_tokens": 7},
        "counted 7 tokens in the answer but returned 1 ids",
    ),
    "too few ids of the prompt": (
        {"prompt_tokens": 99},
        f"counted 99 tokens in the prompt but returned {len(prompted([U]))} ids",
    ),
    "an id too large": (
        {"tokens": TokenIds([1, 2**40], [1], [-1.0]), "answer_tokens": 1, "prompt_tokens": 2},
        "an invalid token id",
    ),
    "an id of the answer too large": (
        {"tokens": TokenIds(prompted([U]), [2**40], [-1.0]), "answer_tokens": 1},
        "an invalid token id",
    ),
    "text for ids": (
        {"tokens": TokenIds(msgspec.Raw(b'["a"]'), [1], [-1.0]), "answer_tokens": 1},
        "an invalid token id",
    ),
    "no list of ids": (
        {"tokens": TokenIds(msgspec.Raw(b"{}"), [1], [-1.0]), "answer_tokens": 1},
        "token ids of the prompt are invalid",
    ),
    "too few versions": ({"versions": [(V1, 2)]}, "2 tokens carry a version"),
}


@pytest.mark.parametrize("what", UNRELIABLE)
async def test_ids_that_do_not_add_up_are_dropped_with_the_reason(talk: Talk, what: str):
    changes, why = UNRELIABLE[what]
    exchange = talk.ask(U, answer=A, **changes)
    assert exchange.tokens is None
    assert why in exchange.untrainable
    assert (await talk.close()).samples() == []


NO_LOGPROBS = {
    "none": (None, "no log probabilities"),
    "too few": ([-1.0], f"1 log probabilities for {len(generated(A))} token ids"),
    "not a number": ([math.nan] * len(generated(A)), "not finite"),
    "endless": ([-math.inf] * len(generated(A)), "not finite"),
    "too large for four bytes": ([-1e300] * len(generated(A)), "not finite"),
}


@pytest.mark.parametrize("what", NO_LOGPROBS)
async def test_an_answer_without_its_log_probabilities_is_never_trained_on(talk: Talk, what: str):
    logprobs, why = NO_LOGPROBS[what]
    tokens = TokenIds(prompted([U]), generated(A), logprobs)
    exchange = talk.ask(U, answer=A, tokens=tokens)
    assert why in exchange.untrainable
    assert exchange.tokens is not None
    assert exchange.tokens.logprobs == b""
    talk.ask(U, A, user("and"), answer=A)
    (sample,) = (await talk.close()).samples()
    assert sample.exchanges == (0, 1)
    assert sample.trained == (1,)
    assert sum(sample.mask) == len(generated(A))


def test_a_conversation_that_gets_ids_late_extends_by_its_messages(talk: Talk):
    talk.ask(U, answer=A, tokens=None)
    second = talk.ask(U, A, user("and"), answer=A)
    assert (second.branch, second.parent) == ("extends", 0)
    assert second.tokens is not None
    assert second.tokens.kept == 0


async def test_each_token_carries_the_version_that_generated_it(talk: Talk):
    answer = assistant("abc")
    talk.ask(U, answer=answer, version=V1, versions=[(V1, 1), (V1, 1), (V2, 0), (V2, 2)])
    trajectory = await talk.close()
    assert trajectory.exchanges[0].tokens is not None
    assert trajectory.exchanges[0].tokens.versions == ((V1, 2), (V2, 2))
    (sample,) = trajectory.samples()
    assert sample.versions == [None] * len(prompted([U])) + [V1, V1, V2, V2]


def test_without_versions_all_tokens_have_the_version_of_the_request(talk: Talk):
    exchange = talk.ask(U, answer=assistant("abc"), version=V2)
    assert exchange.tokens is not None
    assert exchange.tokens.versions == ((V2, 4),)


def test_an_answer_of_no_tokens_is_recorded():
    graph = Graph()
    nothing = done([U], assistant(), tokens=TokenIds(prompted([U]), [], []), answer_tokens=0)
    *_, exchange = graph.commit(graph.locate(Spoken([U]), None), nothing)
    assert isinstance(exchange, Exchange)
    assert exchange.untrainable == ""
    assert exchange.tokens is not None
    assert exchange.tokens.answer == b""
    assert END not in exchange.tokens.answer
