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


def near(found: list[float], expected: list[float]) -> bool:
    return found == pytest.approx(expected, abs=CLOSE)


async def test_an_answer_does_not_depend_on_the_rest_of_the_batch(tmp_path):
    async with generating(tmp_path) as setup:
        alone = await setup.ask(row(prompt(1), 40))
    async with generating(tmp_path) as setup:
        others = [row(prompt(number, 5 * number), 5 + number) for number in range(2, 10)]
        together = await setup.ask_all([*others[:4], row(prompt(1), 40), *others[4:]])
    assert together[4].ids == alone.ids
    assert near(together[4].logprobs, alone.logprobs)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.5}, {"top_p": 0.5}, {"top_k": 3}])
async def test_log_probabilities_match_the_model(tmp_path, sampling):
    async with generating(tmp_path) as setup:
        found = await setup.ask(row(prompt(1), 20, **sampling))
        assert near(found.logprobs, logprobs_of(setup.model, prompt(1), found.ids))


async def test_an_interrupted_answer_reports_the_version_of_each_token(tmp_path):
    async with generating(tmp_path) as setup:
        models = {FIRST_VERSION: setup.model.state_dict()}
        models = {version: {k: v.clone() for k, v in s.items()} for version, s in models.items()}
        asked = [row(prompt(number, 10 + number), 200, streamed=True) for number in range(4)]
        arrived = asyncio.Event()
        received: list[list] = [[] for _ in asked]

        async def follow(number: int) -> None:
            async for piece in setup.generator.generate(asked[number]):
                received[number].append(piece)
                arrived.set()

        async with asyncio.TaskGroup() as group:
            for number in range(len(asked)):
                group.create_task(follow(number))
            for number in (1, 2, 3):
                arrived.clear()
                await arrived.wait()
                version = Version(0, number)
                models[version] = setup.changed(number)
                await setup.generator.publish(models[version], version)
        for number, pieces in enumerate(received):
            check_each_token(setup, models, prompt(number, 10 + number), pieces)
        versions = {
            version for pieces in received for each in pieces for version, _ in each.versions
        }
        assert versions == set(models)


def check_each_token(setup: GeneratorSetup, models: dict, asked: list[int], pieces: list) -> None:
    ids = [token for piece in pieces for token in piece.ids]
    logprobs = [value for piece in pieces for value in piece.logprobs]
    runs = [run for piece in pieces for run in piece.versions]
    stamps = [version for version, count in runs for _ in range(count)]
    assert len(ids) == len(logprobs) == len(stamps) == 200
    assert stamps == sorted(stamps)
    for version, weights in models.items():
        setup.model.load_state_dict(weights)
        expected = logprobs_of(setup.model, asked, ids)
        own = [at for at, stamp in enumerate(stamps) if stamp == version]
        assert near([logprobs[at] for at in own], [expected[at] for at in own])


async def test_after_a_publish_no_token_comes_from_the_old_weights(tmp_path):
    async with generating(tmp_path) as setup:
        changed = setup.changed(1)
        asking = setup.generator.generate(row(prompt(1), 1000, streamed=True))
        assert (await anext(asking)).versions == [(FIRST_VERSION, 1)]
        await setup.generator.publish(changed, Version(0, 1))
        later = await setup.ask(row(prompt(2), 5))
        assert later.versions == [(Version(0, 1), 5)]
        assert near(later.logprobs, logprobs_of(setup.model, prompt(2), later.ids))
        versions = [version async for piece in asking for version, _ in piece.versions]
        assert versions[-1] == Version(0, 1)


async def test_drained_answers_have_one_version(tmp_path):
    async with generating(tmp_path, updating="drain", max_rows=4) as setup:
        first = [asyncio.create_task(setup.ask(row(prompt(n), 60))) for n in range(4)]
        await asyncio.sleep(0.02)
        publishing = asyncio.create_task(setup.generator.publish(setup.changed(1), Version(0, 1)))
        await asyncio.sleep(0)
        late = asyncio.create_task(setup.ask(row(prompt(9), 5)))
        await publishing
        assert all(task.done() for task in first)
        assert {(await task).versions[0] for task in first} == {(FIRST_VERSION, 60)}
        assert (await late).versions == [(Version(0, 1), 5)]


async def test_a_new_version_of_the_same_weights_loads_nothing(tmp_path):
    async with generating(tmp_path) as setup:
        await setup.generator.publish(None, Version(2, 7))
        found = await setup.ask(row(prompt(1), 3))
    assert found.versions == [(Version(2, 7), 3)]


async def test_answers_of_a_group_do_not_depend_on_the_order_of_requests(tmp_path):
    async def answers(order: list[int]) -> Counter[tuple[int, ...]]:
        async with generating(tmp_path, max_rows=3) as setup:
            found = await setup.ask_all([row(prompt(number)) for number in order])
            return Counter(tuple(each.ids) for each in found)

    one = await answers([1, 1, 1, 2, 2, 2])
    other = await answers([2, 1, 2, 1, 1, 2])
    assert one == other
    assert len(one) == 6


async def test_seed_and_version_change_the_samples(tmp_path):
    async def answer(seed: int, version: Version) -> list[int]:
        async with generating(tmp_path, seed=seed, version=version) as setup:
            return (await setup.ask(row(prompt(1), 20))).ids

    first = await answer(0, FIRST_VERSION)
    assert await answer(0, FIRST_VERSION) == first
    assert await answer(1, FIRST_VERSION) != first
    assert await answer(0, Version(0, 1)) != first
    assert await answer(0, Version(3, 0)) == first


async def test_answers_beyond_the_batch_size_are_queued(tmp_path):
    async with generating(tmp_path, max_rows=2) as setup:
        largest = 0

        async def watch() -> None:
            nonlocal largest
            while True:
                largest = max(largest, len(setup.batch))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        found = await setup.ask_all([row(prompt(number), 10) for number in range(7)])
        watching.cancel()
    assert [len(each.ids) for each in found] == [10] * 7
    assert largest <= 2


async def test_a_cancelled_answer_frees_its_slot(tmp_path):
    async with generating(tmp_path, max_rows=1) as setup:
        passes: list[object] = []
        setup.model.register_forward_pre_hook(lambda *given: passes.append(given))
        asked = [asyncio.create_task(setup.ask(row(prompt(n), 2000))) for n in (1, 2)]
        await until(lambda: passes)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        before = len(passes)
        found = await setup.ask(row(prompt(3), 5))
        assert len(found.ids) == 5
        assert len(passes) - before < 20, "cancelled answers were generated"
        assert len(setup.batch) == 0


async def test_an_answer_ends_with_the_first_stop_token(tmp_path):
    async with generating(tmp_path) as setup:
        free = await setup.ask(row(prompt(1), 30))
    end = free.ids[7]
    async with generating(tmp_path, ends=frozenset({end})) as setup:
        found = await setup.ask(row(prompt(1), 30))
    assert found.ids == free.ids[: free.ids.index(end) + 1]
    assert (found.finish, free.finish) == ("stop", "length")


async def test_at_temperature_0_the_most_likely_token_is_chosen(tmp_path):
    async with generating(tmp_path) as setup:
        cold = await setup.ask_all(
            [row(prompt(1), temperature=0.0), row(prompt(1), top_k=1), row(prompt(1), top_p=1e-6)]
        )
        with torch.inference_mode():
            asked = torch.tensor([prompt(1) + cold[0].ids])
            best = setup.model(asked).logits[0, 19:-1].argmax(-1).tolist()
    assert cold[0].ids == cold[1].ids == cold[2].ids == best


async def test_a_long_prompt_does_not_delay_other_answers(tmp_path):
    async with generating(tmp_path, context=8192) as setup:
        batch = setup.batch
        await setup.generator.stop()
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

    async with generating(tmp_path) as setup:
        setup.model.register_forward_pre_hook(count, with_kwargs=True)
        found = await setup.ask_all([row(prompt(1, 300), 4) for _ in range(8)])
        # The prompt once, then one token per row and step.
        assert read <= 300 + 8 * 4
        for each in found:
            assert near(each.logprobs, logprobs_of(setup.model, prompt(1, 300), each.ids))
        longer = [*prompt(1, 300), *found[0].ids, 5, 6, 7]
        read = 0
        again = await setup.ask(row(longer, 3))
        assert read <= 4 + 3
        assert near(again.logprobs, logprobs_of(setup.model, longer, again.ids))


async def test_rows_that_join_and_leave_at_random_get_exact_log_probabilities(tmp_path):
    rng = torch.Generator().manual_seed(0)

    def pick(below: int) -> int:
        return int(torch.randint(below, (1,), generator=rng))

    async with generating(tmp_path, max_rows=5) as setup:

        async def one(number: int) -> None:
            asked = prompt(pick(4), 5 + pick(60))
            asking = asyncio.create_task(setup.ask(row(asked, 1 + pick(40))))
            if pick(4) == 0:
                await asyncio.sleep(pick(20) / 1000)
                asking.cancel()
                return
            found = await asking
            assert near(found.logprobs, logprobs_of(setup.model, asked, found.ids))

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(one(number))
                await asyncio.sleep(pick(10) / 1000)


async def test_non_finite_weights_fail_requests_until_the_next_publish(tmp_path):
    async with generating(tmp_path) as setup:
        good = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
        bad = {name: tensor * float("nan") for name, tensor in good.items()}
        under_way = asyncio.create_task(setup.ask(row(prompt(1), 2000)))
        await asyncio.sleep(0.05)
        await setup.generator.publish(bad, Version(0, 1))
        for asking in (under_way, setup.ask(row(prompt(2)))):
            with pytest.raises(PolicyError, match="not finite"):
                await asking
        await setup.generator.publish(good, Version(0, 2))
        found = await setup.ask(row(prompt(2)))
        assert near(found.logprobs, logprobs_of(setup.model, prompt(2), found.ids))
        assert not setup.generator.problem


async def test_a_non_finite_row_does_not_affect_others(tmp_path):
    async with generating(tmp_path, max_rows=2) as setup:
        setup.model.lm_head.weight = torch.nn.Parameter(setup.model.lm_head.weight.clone())
        with torch.no_grad():
            setup.model.model.embed_tokens.weight[89] = float("nan")
        with pytest.raises(PolicyError, match="not finite"):
            await setup.ask(row([89] * 30, 5))
        # One of them takes the cache slot of the broken row and is shorter.
        asked = [prompt(1, 60), prompt(2, 5)]
        found = await setup.ask_all([row(each, 5) for each in asked])
        for each, answer in zip(asked, found, strict=True):
            assert near(answer.logprobs, logprobs_of(setup.model, each, answer.ids))


def fail_on(setup: GeneratorSetup, error: Exception, when) -> None:
    """Let passes of the model fail while `when` is true of their inputs."""

    def fail(module: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        if when(inputs):
            raise error

    setup.model.register_forward_pre_hook(fail, with_kwargs=True)


async def test_an_error_ends_only_the_requests_of_its_batch(tmp_path):
    async with generating(tmp_path) as setup:
        fail_on(setup, ValueError("no such thing"), lambda given: (given["input_ids"] == 89).any())
        others = [asyncio.create_task(setup.ask(row(prompt(n), 5, top_k=1))) for n in (1, 2)]
        with pytest.raises(PolicyError, match="no such thing"):
            await setup.ask(row([3, 89, 4, 5]))
        assert [len((await other).ids) for other in others] == [5, 5]
        assert not setup.generator.problem


async def test_a_generator_that_keeps_failing_reports_itself_dead(tmp_path):
    async with generating(tmp_path) as setup:
        fail_on(setup, ValueError("no such thing"), bool)
        for _ in range(3):
            with pytest.raises(PolicyError, match="no such thing"):
                await asyncio.wait_for(setup.ask(row(prompt(1))), 30)
        assert "stopped generating" in setup.generator.problem
        with pytest.raises(PolicyError, match="stopped generating"):
            await setup.ask(row(prompt(1)))
        with pytest.raises(PolicyError, match="stopped generating"):
            await setup.generator.publish(None, Version(0, 1))


async def test_out_of_memory_fails_only_the_youngest_answer(tmp_path):
    async with generating(tmp_path, max_rows=8) as setup:
        error = torch.OutOfMemoryError("CUDA out of memory")
        fail_on(setup, error, lambda given: given["input_ids"].shape[0] > 3)
        asked = [asyncio.create_task(setup.ask(row(prompt(n), 300))) for n in range(4)]
        done = await asyncio.gather(*asked, return_exceptions=True)
        later = await setup.ask_all([row(prompt(n), 5) for n in range(6)])
    assert [len(each.ids) for each in done[:3]] == [300] * 3
    assert isinstance(done[3], PolicyError) and "out of memory" in str(done[3])
    assert [len(each.ids) for each in later] == [5] * 6


async def test_weights_of_a_cancelled_publish_are_still_loaded(tmp_path):
    async with generating(tmp_path, updating="drain") as setup:
        changed = setup.changed(1)
        asking = setup.generator.generate(row(prompt(1), 300, streamed=True))
        await anext(asking)
        publishing = asyncio.create_task(setup.generator.publish(changed, Version(0, 1)))
        await asyncio.sleep(0)
        publishing.cancel()
        assert {version async for piece in asking for version, _ in piece.versions} == {
            FIRST_VERSION
        }
        later = await setup.ask(row(prompt(2), 5))
        assert later.versions == [(Version(0, 1), 5)]
        assert not setup.generator.problem


async def test_stopping_ends_requests_in_flight(tmp_path):
    async with generating(tmp_path) as setup:
        asking = asyncio.create_task(setup.ask(row(prompt(1), 2000)))
        await asyncio.sleep(0.02)
        await setup.generator.stop()
        with pytest.raises(PolicyError, match="closed"):
            await asyncio.wait_for(asking, 60)


async def test_sliding_window_layers_get_exact_log_probabilities(tmp_path):
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
    async with generating(tmp_path) as setup:
        asked = [prompt(number, 10 + 7 * number) for number in range(4)]
        found = await setup.ask_all([row(each, 30) for each in asked])
        for each, answer in zip(asked, found, strict=True):
            assert near(answer.logprobs, logprobs_of(setup.model, each, answer.ids))


def fail_swaps(setup: GeneratorSetup, times: int) -> None:
    """Let the next swaps of cache slots fail for lack of memory, this many times."""
    cache, left = setup.batch._cache, [times]  # pyright: ignore[reportPrivateUsage]
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
    async with generating(tmp_path, max_rows=8) as setup:
        await setup.ask(row(prompt(1), 5))  # a finished answer keeps its cache slot
        fail_swaps(setup, 1)
        found = await asyncio.wait_for(setup.ask(row(prompt(2), 5)), 30)
        assert near(found.logprobs, logprobs_of(setup.model, prompt(2), found.ids))
        assert len((await asyncio.wait_for(setup.ask(row(prompt(3), 5)), 30)).ids) == 5


async def test_out_of_memory_at_the_end_of_an_answer_fails_no_answer(tmp_path):
    async with generating(tmp_path, max_rows=8) as setup:
        fail_swaps(setup, 3)
        lengths = [5, 5, 9, 20, 40]
        asked = [row(prompt(number), length) for number, length in enumerate(lengths)]
        found = await asyncio.wait_for(setup.ask_all(asked), 60)
        assert [len(each.ids) for each in found] == lengths
        for number, each in enumerate(found):
            assert near(each.logprobs, logprobs_of(setup.model, prompt(number), each.ids))
        assert not setup.generator.problem


async def test_out_of_memory_at_a_cancellation_fails_no_other_answer(tmp_path):
    async with generating(tmp_path, max_rows=8) as setup:
        received = setup.generator.generate(row(prompt(1), 2000, streamed=True))
        other = asyncio.create_task(setup.ask(row(prompt(2), 300)))
        await anext(received)
        fail_swaps(setup, 1)
        await received.aclose()
        assert len((await asyncio.wait_for(other, 60)).ids) == 300


def widths_of(setup: GeneratorSetup) -> list[int]:
    """Collect the number of rows of each later pass."""
    seen: list[int] = []

    def record(module: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        seen.append(inputs["input_ids"].shape[0])

    setup.model.register_forward_pre_hook(record, with_kwargs=True)
    return seen


async def test_an_answer_too_large_for_memory_leaves_others_their_slots(tmp_path, caplog):
    async with generating(tmp_path, max_rows=16) as setup:
        error = torch.OutOfMemoryError("CUDA out of memory")
        fail_on(setup, error, lambda given: int(given["position_ids"].max()) > 100)
        with pytest.raises(PolicyError, match="too long for this device"):
            await setup.ask(row(prompt(1), 300))
        widths = widths_of(setup)
        await setup.ask_all([row(prompt(n), 20) for n in range(2, 18)])
    assert max(widths) == 16
    assert "out of memory with a single answer of" in caplog.text


async def test_a_reduced_batch_size_recovers(tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "GROWTH_STEPS", 4)
    async with generating(tmp_path, max_rows=8) as setup:
        error, limited = torch.OutOfMemoryError("CUDA out of memory"), [True]
        begin = threading.Event()

        def exceeds_memory(given: dict[str, torch.Tensor]) -> bool:
            assert begin.wait(60), "the requests were not sent in time"
            return limited[0] and given["input_ids"].shape[0] > 3

        fail_on(setup, error, exceeds_memory)
        asked = [asyncio.create_task(setup.ask(row(prompt(n), 4))) for n in range(4)]
        await asyncio.sleep(0)
        begin.set()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, PolicyError) for each in done) == 1
        assert setup.batch.max_rows == 3
        limited[0] = False
        await setup.ask_all([row(prompt(n), 60) for n in range(8)])
        assert setup.batch.max_rows == 8
