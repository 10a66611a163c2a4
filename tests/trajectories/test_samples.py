from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_parts import (
    Spoken,
    Talk,
    assistant,
    bash,
    done,
    generated,
    prompted,
    system,
    tool,
    user,
)

from plimsoll.core.versions import FIRST_VERSION
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.samples import Sample
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import read_trajectory

S, U, A = system("you help"), user("fix"), assistant("look", bash("c1"))
T, B = tool("c1", "out"), assistant("done")


def trained(samples: list[Sample]) -> int:
    return sum(sum(sample.mask) for sample in samples)


async def test_a_conversation_is_one_sample_of_the_servers_ids(talk: Talk):
    talk.ask(S, U, answer=A)
    talk.ask(S, U, A, T, answer=B)
    (sample,) = (await talk.close()).samples()
    assert list(sample.ids) == prompted([S, U, A, T]) + generated(B)
    first, a, t = len(prompted([S, U])), len(generated(A)), len("7out36")
    b = len(generated(B))
    assert list(sample.mask) == [0] * first + [1] * a + [0] * t + [1] * b
    assert list(sample.logprobs) == [-0.5 * one for one in sample.mask]
    assert sample.versions == [FIRST_VERSION if one else None for one in sample.mask]
    assert (
        sample.roles == ["context"] * first + ["assistant"] * a + ["tool"] * t + ["assistant"] * b
    )
    assert (sample.branch, sample.exchanges, sample.trained) == ("start", (0, 1), (0, 1))


async def test_shared_exchanges_are_trained_in_the_first_branch_only(talk: Talk):
    talk.ask(U, answer=A)
    talk.ask(U, A, T, answer=B)
    talk.ask(U, A, tool("c1", "other"), answer=assistant("else"))
    first, second = (await talk.close()).samples()
    assert (first.exchanges, first.trained) == ((0, 1), (0, 1))
    assert (second.exchanges, second.trained) == ((0, 2), (2,))
    assert second.branch == "rewritten"
    shared = len(prompted([U]) + generated(A))
    assert first.ids[:shared] == second.ids[:shared]
    assert sum(second.mask[:shared]) == 0
    assert second.roles[len(prompted([U]))] == "assistant"
    assert sum(second.mask) == len(generated(assistant("else")))


async def test_a_second_answer_is_a_sample_with_the_same_prompt(talk: Talk):
    talk.ask(U, answer=A)
    talk.ask(U, A, T, answer=B)
    talk.ask(U, A, T, answer=assistant("or so"))
    first, second = (await talk.close()).samples()
    assert second.branch == "again"
    assert list(second.ids) == prompted([U, A, T]) + generated(assistant("or so"))
    assert trained([second]) == len(generated(assistant("or so")))
    assert trained([first]) == len(generated(A) + generated(B))


async def test_a_retokenized_turn_begins_a_sample_and_loses_none(talk: Talk):
    thinking = assistant("look", bash("c1"), reasoning="hm")
    talk.ask(U, answer=thinking)
    talk.ask(U, A, T, answer=B)
    first, second = (await talk.close()).samples()
    assert list(first.ids) == prompted([U]) + generated(thinking)
    assert (second.branch, second.exchanges) == ("retokenized", (1,))
    assert list(second.ids) == prompted([U, A, T]) + generated(B)
    assert trained([second]) == len(generated(B))


async def test_exchanges_around_one_without_ids_are_still_trained_on(talk: Talk):
    talk.ask(U, answer=A)
    talk.ask(U, A, T, answer=B, tokens=None)
    talk.ask(U, A, T, B, user("on"), answer=A)
    first, second = (await talk.close()).samples()
    assert (first.exchanges, second.exchanges) == ((0,), (2,))
    assert list(second.ids) == prompted([U, A, T, B, user("on")]) + generated(A)
    assert trained([first, second]) == 2 * len(generated(A))


def test_a_sample_of_unequal_lengths_is_refused():
    with pytest.raises(AssertionError, match="2 ids, but 1 of mask"):
        Sample("start", (0,), (0,), array("i", [1, 2]), bytearray(1), array("f"), [], [])


WORDS = st.sampled_from(["a", "b", "c"])
TURNS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 2), WORDS, WORDS, st.booleans()),
    min_size=1,
    max_size=12,
)


@given(turns=TURNS)
def test_every_token_is_exact_and_trained_once_for_any_agent(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int, str, str, bool]]
):
    folder = tmp_path_factory.mktemp("talk")
    recorder = Recorder.open(folder, folder / "blobs", "s", {})
    known: list[list[Message]] = [[S]]
    expected: list[tuple[list[Message], Message]] = []
    for choice, dropped, word, text, thinks in turns:
        before = known[choice % len(known)]
        prompt = [*before[: len(before) - dropped], user(word)]
        answer = assistant(text, reasoning="hm" if thinks else "")
        recorder.commit(recorder.locate(Spoken(prompt), None), done(prompt, answer, text=thinks))
        expected.append((prompt, answer))
        known.append([*prompt, assistant(text)])
    recorder.abandon()
    check(read_trajectory(folder / "trajectory.jsonl.zst.part"), expected)


def check(trajectory: Trajectory, expected: list[tuple[list[Message], Message]]) -> None:
    for exchange, (prompt, answer) in zip(trajectory.exchanges, expected, strict=True):
        assert list(trajectory.ids_of(exchange)) == prompted(prompt)
        assert trajectory.answer_of(exchange) == answer
        assert [one.text for one in trajectory.messages_of(exchange)] == [
            one.text for one in prompt
        ]
    samples = trajectory.samples()
    owners = [one for sample in samples for one in sample.trained]
    assert sorted(owners) == list(range(len(expected)))
    assert trained(samples) == sum(len(generated(answer)) for _, answer in expected)
    for sample in samples:
        prompt, answer = expected[sample.exchanges[-1]]
        assert list(sample.ids) == prompted(prompt) + generated(answer)


def test_a_long_conversation_is_stored_once(tmp_path: Path):
    sizes: list[int] = []
    for turns in (20, 40):
        recorder = Recorder.open(tmp_path / f"{turns}", tmp_path / "blobs", "s", {})
        history = [S]
        for turn in range(turns):
            history.append(user(f"{turn} " + str(hash((turn, "x"))) * 20))
            answer = assistant(f"{turn} " + str(hash((turn, "y"))) * 20)
            recorder.commit(recorder.locate(Spoken(history), None), done(history, answer))
            history.append(answer)
        recorder.abandon()
        sizes.append((tmp_path / f"{turns}" / "trajectory.jsonl.zst.part").stat().st_size)
    assert sizes[1] < 2.2 * sizes[0]
