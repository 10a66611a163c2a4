"""The limits of a session, and the refusals at each limit."""

import asyncio

import pytest
from gateway_parts import ENDPOINTS, ServedSession, Stepped, done, say, serving

from plimsoll.gateway.completions import Refusal, Usage
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.testing.waiting import until

every_path = pytest.mark.parametrize("path", ENDPOINTS)


async def _answer(served: ServedSession, stepped: Stepped, number: int, path: str, **more) -> int:
    asking = served.asking(path, number, **more)
    done(await stepped.call(number), f"answer {number}")
    return (await asking)[0]


@every_path
async def test_the_number_of_turns_is_limited(tmp_path, stepped: Stepped, path: str):
    async with serving(stepped, tmp_path, Limits(turns=2)) as served:
        assert [await _answer(served, stepped, n, path) for n in range(2)] == [200, 200]
        assert served.session.ending is None
        status, body = await served.ask(path, 2)
        assert status == 400
        assert b"2 turns" in body
        assert served.session.ending == "budget"
        assert "2 turns" in served.session.detail
        assert len(stepped.calls) == 2
        trajectory = await served.read()
    assert trajectory.closed is not None
    assert (trajectory.closed.ending, len(trajectory.exchanges)) == ("budget", 2)
    assert [trouble.what for trouble in trajectory.troubles] == ["budget"]


async def test_concurrent_requests_do_not_exceed_the_turns(tmp_path, stepped: Stepped):
    async with serving(stepped, tmp_path, Limits(turns=2)) as served:
        asking = [served.asking(number=number) for number in range(5)]
        refused = [(await each)[0] for each in asking[2:]]
        assert refused == [429] * 3  # retryable: those in flight may fail
        assert served.session.ending is None
        for step in stepped.calls:
            done(step, "fine")
        assert [(await each)[0] for each in asking[:2]] == [200, 200]
        assert served.session.exchanges == 2


@every_path
async def test_exhausted_tokens_are_reported_as_a_full_context(
    tmp_path, stepped: Stepped, path: str
):
    stepped.usage = Usage(prompt=60, answer=3)
    async with serving(stepped, tmp_path, Limits(tokens=100)) as served:
        assert await _answer(served, stepped, 0, path) == 200
        assert await _answer(served, stepped, 1, path) == 200
        assert served.session.tokens == 126
        status, body = await served.ask(path, 2)
        assert status == 400
        known = (b"context_length_exceeded", b"prompt is too long")
        assert any(word in body for word in known)
        assert served.session.ending == "budget"
        trajectory = await served.read()
    assert [trouble.what for trouble in trajectory.troubles] == ["budget"]


async def test_uncounted_tokens_are_counted_by_their_ids(tmp_path, stepped: Stepped):
    stepped.usage = None
    async with serving(stepped, tmp_path, Limits(tokens=100)) as served:
        await _answer(served, stepped, 0, "/v1/messages")
        assert served.session.tokens == 10


@every_path
@pytest.mark.parametrize("streaming", [False, True])
async def test_waiting_clients_are_woken_when_time_is_over(tmp_path, stepped, path, streaming):
    async with serving(stepped, tmp_path) as served:
        opening, whole = served.start_stream(path), served.asking(path, 1)
        await stepped.call(1)
        if streaming:
            for step in stepped.calls:
                say(step, "one")
            await until(opening.done)
        served.session._budget._on_timer(0.3)
        async with asyncio.timeout(30):
            streamed, (status, body) = await asyncio.gather(opening, whole)
            events = await streamed.read()
        assert (streamed.status, status) == (200 if streaming else 400, 400)
        assert b"0.3 s are over" in events
        assert b"0.3 s are over" in body
        assert all(step.cancelled for step in stepped.calls)
        assert served.session.ending == "budget"
        assert (await served.ask(path, 2))[0] == 400
        assert served.session.exchanges == 0
        trajectory = await served.read()
    assert {trouble.what for trouble in trajectory.troubles} == {"budget"}


async def test_concurrent_requests_are_limited(tmp_path, stepped: Stepped):
    async with serving(stepped, tmp_path, Limits(concurrent=2)) as served:
        asking = [served.asking(number=number) for number in range(2)]
        await stepped.call(1)
        status, body = await served.ask(number=2)
        assert status == 429
        assert b"2 requests" in body
        done(stepped.calls[0], "fine")
        assert await _answered(asking) == 200
        again = served.asking(number=2)
        done(await stepped.call(2), "fine")
        assert (await again)[0] == 200
        assert served.session.ending is None
        done(stepped.calls[1], "fine")
        await asyncio.gather(*asking)


async def _answered(asking: list[asyncio.Task[tuple[int, bytes]]]) -> int:
    first, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    return first.pop().result()[0]


async def test_many_retries_of_one_request_are_limited(tmp_path, stepped: Stepped):
    async with serving(stepped, tmp_path, Limits(concurrent=2)) as served:
        asking = [served.asking() for _ in range(12)]
        await until(lambda: sum(each.done() for each in asking) == 4)
        await until(lambda: len(served.session.handlers) == 8)
        waiting = [each for each in asking if not each.done()]
        assert [(await each)[0] for each in asking if each not in waiting] == [429] * 4
        done(await stepped.call(), "fine")
        assert len(stepped.calls) == 1
        assert [(await each)[0] for each in waiting] == [200] * 8
        assert served.session.exchanges == 1
        assert [trouble.what for trouble in (await served.read()).troubles] == ["too_many"] * 4


async def test_a_failing_agent_does_not_fill_the_disk(served: ServedSession, monkeypatch):
    monkeypatch.setattr("plimsoll.gateway.sessions.session.MAX_TROUBLES", 5)
    for _ in range(20):
        url = served.access.root + "/v1/messages"
        async with served.client.post(url, data=b"{") as reply:
            assert reply.status == 400
    assert len((await served.read()).troubles) == 5


async def _fail(served: ServedSession, stepped: Stepped, number: int, path: str, **more) -> int:
    asking = served.asking(path, number, **more)
    say(await stepped.call(number), Refusal("upstream", f"failure {number}"))
    return (await asking)[0]


@every_path
async def test_a_policy_that_fails_ten_times_in_a_row_is_given_up(tmp_path, stepped, path):
    async with serving(stepped, tmp_path) as served:
        assert {await _fail(served, stepped, n, path, stream=n % 2 == 0) for n in range(10)} == {
            502
        }
        for stream in (False, True):
            status, body = await served.ask(path, 10, stream=stream)
            assert status == 400
            assert b"failed 10 times in a row; the last time: failure 9" in body
        assert len(stepped.calls) == 10
        assert served.session.failure == "failure 9"
        assert served.session.ending is None
        trajectory = await served.read()
    troubles = [trouble.what for trouble in trajectory.troubles]
    assert troubles == ["upstream"] * 10 + ["gave_up"] * 2


async def test_retryable_refusals_have_a_retry_after(tmp_path, stepped: Stepped):
    """Without it, agents back off for longer and longer."""
    async with serving(stepped, tmp_path) as served:

        async def post() -> tuple[int, str | None]:
            async with served.post(stream=True) as reply:
                return reply.status, reply.headers.get("Retry-After")

        asking = asyncio.create_task(post())
        say(await stepped.call(), Refusal("upstream", "down"))
        assert await asking == (502, "1")


async def test_an_answer_resets_the_failures(tmp_path, stepped: Stepped):
    async with serving(stepped, tmp_path) as served:
        path = "/v1/messages"
        for number in range(30):
            failing = (number + 1) % 10
            act = _fail if failing else _answer
            assert await act(served, stepped, number, path) == (502 if failing else 200)
        assert served.session.exchanges == 3
        assert served.session.failure == ""


async def test_requests_that_fail_together_are_one_failure(tmp_path, stepped: Stepped):
    async with serving(stepped, tmp_path) as served:
        asking = [served.asking(number=number) for number in range(12)]
        await stepped.call(11)
        for step in stepped.calls:
            say(step, Refusal("upstream", "down"))
        assert {(await each)[0] for each in asking} == {502}
        assert await _answer(served, stepped, 12, "/v1/responses") == 200


async def test_a_policy_that_was_given_up_is_tried_again_later(
    tmp_path, stepped: Stepped, monkeypatch
):
    async with serving(stepped, tmp_path) as served:
        for number in range(10):
            await _fail(served, stepped, number, "/v1/messages")
        assert (await served.ask(number=10))[0] == 400
        monkeypatch.setattr("plimsoll.gateway.sessions.policy_failures.RETRY_SECONDS", 0.0)
        assert await _answer(served, stepped, 10, "/v1/messages") == 200
        assert await _answer(served, stepped, 11, "/v1/messages") == 200
