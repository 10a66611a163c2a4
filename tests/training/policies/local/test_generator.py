"""The generator: batching, weights between tokens, errors, memory."""

import asyncio
import threading
from collections import Counter

import pytest
import torch
from generator_setup import LETTERS, GeneratorSetup, generating, logprobs_of, prompt, row
from transformers import MistralConfig, MistralForCausalLM

from plimsoll.core.errors import PolicyError
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.testing.waiting import until
from plimsoll.training.policies.local import generator
from plimsoll.training.policies.local.decoding_batch import CHUNK

CLOSE = 2e-4


def near(found: list[float], wanted: list[float]) -> bool:
    return found == pytest.approx(wanted, abs=CLOSE)


async def test_an_answer_does_not_depend_on_the_rest_of_the_batch(tmp_path):
    async with generating(tmp_path) as made:
        alone = await made.ask(row(prompt(1), 40))
    async with generating(tmp_path) as made:
        others = [row(prompt(number, 5 * number), 5 + number) for number in range(2, 10)]
        together = await made.ask_all([*others[:4], row(prompt(1), 40), *others[4:]])
    assert together[4].ids == alone.ids
    assert near(together[4].logprobs, alone.logprobs)


@pytest.mark.parametrize("taste", [{}, {"temperature": 0.5}, {"top_p": 0.5}, {"top_k": 3}])
async def test_log_probabilities_match_the_model(tmp_path, taste):
    async with generating(tmp_path) as made:
        found = await made.ask(row(prompt(1), 20, **taste))
        assert near(found.logprobs, logprobs_of(made.model, prompt(1), found.ids))


async def test_an_interrupted_answer_reports_the_version_of_each_token(tmp_path):
    async with generating(tmp_path) as made:
        models = {FIRST_VERSION: made.model.state_dict()}
        models = {version: {k: v.clone() for k, v in s.items()} for version, s in models.items()}
        asked = [row(prompt(number, 10 + number), 200, streamed=True) for number in range(4)]
        begun = asyncio.Event()
        heard: list[list] = [[] for _ in asked]

        async def follow(number: int) -> None:
            async for news in made.generator.generate(asked[number]):
                heard[number].append(news)
                begun.set()

        async with asyncio.TaskGroup() as group:
            for number in range(len(asked)):
                group.create_task(follow(number))
            for number in (1, 2, 3):
                begun.clear()
                await begun.wait()
                version = Version(0, number)
                models[version] = made.changed(number)
                await made.generator.publish(models[version], version)
        for number, pieces in enumerate(heard):
            check_each_token(made, models, prompt(number, 10 + number), pieces)
        versions = {version for pieces in heard for each in pieces for version, _ in each.versions}
        assert versions == set(models)


def check_each_token(made: GeneratorSetup, models: dict, asked: list[int], pieces: list) -> None:
    ids = [token for piece in pieces for token in piece.ids]
    logprobs = [value for piece in pieces for value in piece.logprobs]
    runs = [run for piece in pieces for run in piece.versions]
    stamps = [version for version, count in runs for _ in range(count)]
    assert len(ids) == len(logprobs) == len(stamps) == 200
    assert stamps == sorted(stamps)
    for version, weights in models.items():
        made.model.load_state_dict(weights)
        wanted = logprobs_of(made.model, asked, ids)
        mine = [at for at, stamp in enumerate(stamps) if stamp == version]
        assert near([logprobs[at] for at in mine], [wanted[at] for at in mine])


async def test_after_a_publish_no_token_comes_from_the_old_weights(tmp_path):
    async with generating(tmp_path) as made:
        changed = made.changed(1)
        asking = made.generator.generate(row(prompt(1), 1000, streamed=True))
        assert (await anext(asking)).versions == [(FIRST_VERSION, 1)]
        await made.generator.publish(changed, Version(0, 1))
        later = await made.ask(row(prompt(2), 5))
        assert later.versions == [(Version(0, 1), 5)]
        assert near(later.logprobs, logprobs_of(made.model, prompt(2), later.ids))
        said = [version async for news in asking for version, _ in news.versions]
        assert said[-1] == Version(0, 1)


async def test_drained_answers_have_one_version(tmp_path):
    async with generating(tmp_path, updating="drain", max_rows=4) as made:
        first = [asyncio.create_task(made.ask(row(prompt(n), 60))) for n in range(4)]
        await asyncio.sleep(0.02)
        publishing = asyncio.create_task(made.generator.publish(made.changed(1), Version(0, 1)))
        await asyncio.sleep(0)
        late = asyncio.create_task(made.ask(row(prompt(9), 5)))
        await publishing
        assert all(task.done() for task in first)
        assert {(await task).versions[0] for task in first} == {(FIRST_VERSION, 60)}
        assert (await late).versions == [(Version(0, 1), 5)]


async def test_a_new_version_of_the_same_weights_loads_nothing(tmp_path):
    async with generating(tmp_path) as made:
        await made.generator.publish(None, Version(2, 7))
        found = await made.ask(row(prompt(1), 3))
    assert found.versions == [(Version(2, 7), 3)]


async def test_answers_of_a_group_do_not_depend_on_the_order_of_requests(tmp_path):
    async def answers(order: list[int]) -> Counter[tuple[int, ...]]:
        async with generating(tmp_path, max_rows=3) as made:
            found = await made.ask_all([row(prompt(number)) for number in order])
            return Counter(tuple(each.ids) for each in found)

    one = await answers([1, 1, 1, 2, 2, 2])
    other = await answers([2, 1, 2, 1, 1, 2])
    assert one == other
    assert len(one) == 6


async def test_seed_and_version_change_the_samples(tmp_path):
    async def answer(seed: int, version: Version) -> list[int]:
        async with generating(tmp_path, seed=seed, version=version) as made:
            return (await made.ask(row(prompt(1), 20))).ids

    first = await answer(0, FIRST_VERSION)
    assert await answer(0, FIRST_VERSION) == first
    assert await answer(1, FIRST_VERSION) != first
    assert await answer(0, Version(0, 1)) != first
    assert await answer(0, Version(3, 0)) == first


async def test_answers_beyond_the_batch_size_are_queued(tmp_path):
    async with generating(tmp_path, max_rows=2) as made:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(made.batch))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        found = await made.ask_all([row(prompt(number), 10) for number in range(7)])
        watching.cancel()
    assert [len(each.ids) for each in found] == [10] * 7
    assert most <= 2


async def test_a_cancelled_answer_frees_its_slot(tmp_path):
    async with generating(tmp_path, max_rows=1) as made:
        passes: list[object] = []
        made.model.register_forward_pre_hook(lambda *given: passes.append(given))
        asked = [asyncio.create_task(made.ask(row(prompt(n), 2000))) for n in (1, 2)]
        await until(lambda: passes)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        before = len(passes)
        found = await made.ask(row(prompt(3), 5))
        assert len(found.ids) == 5
        assert len(passes) - before < 20, "what was given up was generated all the same"
        assert len(made.batch) == 0


async def test_an_answer_ends_with_the_first_stop_token(tmp_path):
    async with generating(tmp_path) as made:
        free = await made.ask(row(prompt(1), 30))
    end = free.ids[7]
    async with generating(tmp_path, ends=frozenset({end})) as made:
        found = await made.ask(row(prompt(1), 30))
    assert found.ids == free.ids[: free.ids.index(end) + 1]
    assert (found.finish, free.finish) == ("stop", "length")


async def test_at_temperature_0_the_most_likely_token_is_chosen(tmp_path):
    async with generating(tmp_path) as made:
        cold = await made.ask_all(
            [row(prompt(1), temperature=0.0), row(prompt(1), top_k=1), row(prompt(1), top_p=1e-6)]
        )
        with torch.inference_mode():
            asked = torch.tensor([prompt(1) + cold[0].ids])
            best = made.model(asked).logits[0, 19:-1].argmax(-1).tolist()
    assert cold[0].ids == cold[1].ids == cold[2].ids == best


async def test_a_long_prompt_does_not_delay_other_answers(tmp_path):
    async with generating(tmp_path, context=8192) as made:
        batch = made.batch
        await made.generator.stop()
        batch.join(short := row(prompt(1), 50))
        batch.step()
        batch.join(long := row(prompt(2, 3 * CHUNK + 2), 5))
        before = len(short.ids)
        for steps in range(1, 4):
            batch.step()
            assert len(short.ids) == before + steps
            assert long.stored <= steps * CHUNK + 1


async def test_a_shared_prefix_is_computed_once(tmp_path):
    read = 0

    def count(module: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        nonlocal read
        read += inputs["input_ids"].numel()

    async with generating(tmp_path) as made:
        made.model.register_forward_pre_hook(count, with_kwargs=True)
        found = await made.ask_all([row(prompt(1, 300), 4) for _ in range(8)])
        # The prompt once, then a token a row and step.
        assert read <= 300 + 8 * 4
        for each in found:
            assert near(each.logprobs, logprobs_of(made.model, prompt(1, 300), each.ids))
        longer = [*prompt(1, 300), *found[0].ids, 5, 6, 7]
        read = 0
        again = await made.ask(row(longer, 3))
        assert read <= 4 + 3
        assert near(again.logprobs, logprobs_of(made.model, longer, again.ids))


async def test_rows_that_join_and_leave_at_random_stay_exact(tmp_path):
    chance = torch.Generator().manual_seed(0)

    def pick(below: int) -> int:
        return int(torch.randint(below, (1,), generator=chance))

    async with generating(tmp_path, max_rows=5) as made:

        async def one(number: int) -> None:
            asked = prompt(pick(4), 5 + pick(60))
            asking = asyncio.create_task(made.ask(row(asked, 1 + pick(40))))
            if pick(4) == 0:
                await asyncio.sleep(pick(20) / 1000)
                asking.cancel()
                return
            found = await asking
            assert near(found.logprobs, logprobs_of(made.model, asked, found.ids))

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(one(number))
                await asyncio.sleep(pick(10) / 1000)


async def test_non_finite_weights_fail_requests_until_the_next_publish(tmp_path):
    async with generating(tmp_path) as made:
        good = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
        bad = {name: tensor * float("nan") for name, tensor in good.items()}
        under_way = asyncio.create_task(made.ask(row(prompt(1), 2000)))
        await asyncio.sleep(0.05)
        await made.generator.publish(bad, Version(0, 1))
        for asking in (under_way, made.ask(row(prompt(2)))):
            with pytest.raises(PolicyError, match="not finite"):
                await asking
        await made.generator.publish(good, Version(0, 2))
        found = await made.ask(row(prompt(2)))
        assert near(found.logprobs, logprobs_of(made.model, prompt(2), found.ids))
        assert not made.generator.problem


async def test_a_non_finite_row_does_not_affect_others(tmp_path):
    async with generating(tmp_path, max_rows=2) as made:
        made.model.lm_head.weight = torch.nn.Parameter(made.model.lm_head.weight.clone())
        with torch.no_grad():
            made.model.model.embed_tokens.weight[89] = float("nan")
        with pytest.raises(PolicyError, match="not finite"):
            await made.ask(row([89] * 30, 5))
        # One of them takes the cache slot of the broken row and is shorter.
        asked = [prompt(1, 60), prompt(2, 5)]
        found = await made.ask_all([row(each, 5) for each in asked])
        for each, answer in zip(asked, found, strict=True):
            assert near(answer.logprobs, logprobs_of(made.model, each, answer.ids))


def fail_on(made: GeneratorSetup, error: Exception, when) -> None:
    """Makes passes of the model fail while `when` says so."""

    def fail(module: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        if when(inputs):
            raise error

    made.model.register_forward_pre_hook(fail, with_kwargs=True)


async def test_an_error_ends_only_the_requests_of_its_batch(tmp_path):
    async with generating(tmp_path) as made:
        fail_on(made, ValueError("no such thing"), lambda given: (given["input_ids"] == 89).any())
        others = [asyncio.create_task(made.ask(row(prompt(n), 5, top_k=1))) for n in (1, 2)]
        with pytest.raises(PolicyError, match="no such thing"):
            await made.ask(row([3, 89, 4, 5]))
        assert [len((await other).ids) for other in others] == [5, 5]
        assert not made.generator.problem


async def test_a_generator_that_keeps_failing_reports_itself_dead(tmp_path):
    async with generating(tmp_path) as made:
        fail_on(made, ValueError("no such thing"), bool)
        for _ in range(3):
            with pytest.raises(PolicyError, match="no such thing"):
                await asyncio.wait_for(made.ask(row(prompt(1))), 30)
        assert "stopped generating" in made.generator.problem
        with pytest.raises(PolicyError, match="stopped generating"):
            await made.ask(row(prompt(1)))
        with pytest.raises(PolicyError, match="stopped generating"):
            await made.generator.publish(None, Version(0, 1))


async def test_out_of_memory_fails_only_the_youngest_answer(tmp_path):
    async with generating(tmp_path, max_rows=8) as made:
        full = torch.OutOfMemoryError("CUDA out of memory")
        fail_on(made, full, lambda given: given["input_ids"].shape[0] > 3)
        asked = [asyncio.create_task(made.ask(row(prompt(n), 300))) for n in range(4)]
        done = await asyncio.gather(*asked, return_exceptions=True)
        later = await made.ask_all([row(prompt(n), 5) for n in range(6)])
    assert [len(each.ids) for each in done[:3]] == [300] * 3
    assert isinstance(done[3], PolicyError) and "out of memory" in str(done[3])
    assert [len(each.ids) for each in later] == [5] * 6


async def test_weights_of_a_cancelled_publish_are_still_loaded(tmp_path):
    async with generating(tmp_path, updating="drain") as made:
        changed = made.changed(1)
        asking = made.generator.generate(row(prompt(1), 300, streamed=True))
        await anext(asking)
        publishing = asyncio.create_task(made.generator.publish(changed, Version(0, 1)))
        await asyncio.sleep(0)
        publishing.cancel()
        assert {version async for news in asking for version, _ in news.versions} == {FIRST_VERSION}
        later = await made.ask(row(prompt(2), 5))
        assert later.versions == [(Version(0, 1), 5)]
        assert not made.generator.problem


async def test_stopping_ends_requests_in_flight(tmp_path):
    async with generating(tmp_path) as made:
        asking = asyncio.create_task(made.ask(row(prompt(1), 2000)))
        await asyncio.sleep(0.02)
        await made.generator.stop()
        with pytest.raises(PolicyError, match="closed"):
            await asyncio.wait_for(asking, 60)


async def test_sliding_window_layers_are_respected(tmp_path):
    config = MistralConfig(
        vocab_size=LETTERS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        sliding_window=8,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    async with generating(tmp_path) as made:
        asked = [prompt(number, 10 + 7 * number) for number in range(4)]
        found = await made.ask_all([row(each, 30) for each in asked])
        for each, answer in zip(asked, found, strict=True):
            assert near(answer.logprobs, logprobs_of(made.model, each, answer.ids))


def no_memory_to_swap(made: GeneratorSetup, times: int) -> None:
    """Places cannot be exchanged the next so many times."""
    cache, left = made.batch._cache, [times]  # pyright: ignore[reportPrivateUsage]
    real = cache.swap

    def swap(one: int, other: int, tokens: int) -> None:
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(one, other, tokens)

    cache.swap = swap


async def test_out_of_memory_at_the_start_of_an_answer_leaves_no_request_waiting(
    tmp_path,
):
    async with generating(tmp_path, max_rows=8) as made:
        await made.ask(row(prompt(1), 5))  # it keeps the first made
        no_memory_to_swap(made, 1)
        found = await asyncio.wait_for(made.ask(row(prompt(2), 5)), 30)
        assert near(found.logprobs, logprobs_of(made.model, prompt(2), found.ids))
        assert len((await asyncio.wait_for(made.ask(row(prompt(3), 5)), 30)).ids) == 5


async def test_out_of_memory_at_the_end_of_an_answer_fails_no_answer(tmp_path):
    async with generating(tmp_path, max_rows=8) as made:
        no_memory_to_swap(made, 3)
        lengths = [5, 5, 9, 20, 40]
        asked = [row(prompt(number), length) for number, length in enumerate(lengths)]
        found = await asyncio.wait_for(made.ask_all(asked), 60)
        assert [len(each.ids) for each in found] == lengths
        for number, each in enumerate(found):
            assert near(each.logprobs, logprobs_of(made.model, prompt(number), each.ids))
        assert not made.generator.problem


async def test_out_of_memory_at_a_cancellation_fails_no_other_answer(tmp_path):
    async with generating(tmp_path, max_rows=8) as made:
        heard = made.generator.generate(row(prompt(1), 2000, streamed=True))
        other = asyncio.create_task(made.ask(row(prompt(2), 300)))
        await anext(heard)
        no_memory_to_swap(made, 1)
        await heard.aclose()
        assert len((await asyncio.wait_for(other, 60)).ids) == 300


def widths_of(made: GeneratorSetup) -> list[int]:
    """How many rows each pass is for, from here on."""
    seen: list[int] = []

    def see(module: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        seen.append(inputs["input_ids"].shape[0])

    made.model.register_forward_pre_hook(see, with_kwargs=True)
    return seen


async def test_an_answer_too_large_for_memory_leaves_others_their_slots(tmp_path, caplog):
    async with generating(tmp_path, max_rows=16) as made:
        full = torch.OutOfMemoryError("CUDA out of memory")
        fail_on(made, full, lambda given: int(given["position_ids"].max()) > 100)
        with pytest.raises(PolicyError, match="too long for this device"):
            await made.ask(row(prompt(1), 300))
        widths = widths_of(made)
        await made.ask_all([row(prompt(n), 20) for n in range(2, 18)])
    assert max(widths) == 16
    assert "out of memory with a single answer of" in caplog.text


async def test_a_reduced_batch_size_recovers(tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "GROWTH_STEPS", 4)
    async with generating(tmp_path, max_rows=8) as made:
        full, lacks = torch.OutOfMemoryError("CUDA out of memory"), [True]
        begin = threading.Event()

        def does(given: dict[str, torch.Tensor]) -> bool:
            assert begin.wait(60), "none is over before the last has asked"
            return lacks[0] and given["input_ids"].shape[0] > 3

        fail_on(made, full, does)
        asked = [asyncio.create_task(made.ask(row(prompt(n), 4))) for n in range(4)]
        await asyncio.sleep(0)
        begin.set()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, PolicyError) for each in done) == 1
        assert made.batch.max_rows == 3
        lacks[0] = False
        await made.ask_all([row(prompt(n), 60) for n in range(8)])
        assert made.batch.max_rows == 8
