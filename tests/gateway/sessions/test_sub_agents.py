"""Agents with many concurrent conversations in one session, while weights change."""

import asyncio
import json
import random
from collections import Counter

import msgspec
import pytest
from gateway_parts import ServedSession, fields, runs_in_file, serving

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.gateway.upstreams.scripted.byte_tokens import answer_ids, prompt_ids
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.request import read_request
from plimsoll.gateway.upstreams.scripted.script import Turn
from plimsoll.trajectories.trajectory import Trajectory

SHARED = [{"role": "system", "content": "be good"}, {"role": "user", "content": "go"}]


class Agents:
    """Take turns at random; now and then one starts another with a part of its history."""

    def __init__(self, served: ServedSession, chance: random.Random) -> None:
        self._served = served
        self._chance = chance

    async def work(self, name: str, history: list[dict[str, str]], turns: int) -> None:
        async with asyncio.TaskGroup() as others:
            for turn in range(turns):
                answer = await self._ask(history)
                result = f"{name} turn {turn} {self._chance.random()}"
                history = [
                    *history,
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": result},
                ]
                if turns > 3 and self._chance.random() < 0.3:
                    part = history[: self._chance.randrange(1, len(history) + 1)]
                    others.create_task(self.work(f"{name}{turn}", part, 3))

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        stream = self._chance.random() < 0.5
        status, body = await self._served.ask(messages=messages, stream=stream)
        assert status == 200, body
        if not stream:
            return json.loads(body)["choices"][0]["message"]["content"]
        deltas = (piece["choices"][0]["delta"] for piece in fields(body))
        return "".join(delta.get("content") or "" for delta in deltas)


async def _new_weights(gate: Gate, chance: random.Random) -> None:
    for number in range(1, 1000):
        await asyncio.sleep(0.03)
        await gate.pause(drain=chance.random() < 0.5)
        gate.resume(Version(FIRST_VERSION.lineage, number))


@pytest.mark.parametrize("seed", range(2))
async def test_every_token_is_recorded_in_the_conversation_that_generated_it(tmp_path, seed: int):
    chance = random.Random(seed)
    policy = ScriptedPolicy(
        lambda asked: Turn(text=f"re {asked.last[-20:]}", delay=chance.random() / 100), pace=0.001
    )
    gate = Gate(policy)
    async with serving(gate, tmp_path, Limits(concurrent=100)) as served:
        updating = asyncio.create_task(_new_weights(gate, chance))
        agents = Agents(served, chance)
        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                own = [{"role": "user", "content": f"I am {name}"}]
                group.create_task(agents.work(name, SHARED if name < "d" else own, 6))
        updating.cancel()
        trajectory = await served.read()
        runs = served.session.version_runs
    assert len(runs) > 1
    assert list(runs) == runs_in_file(trajectory.exchanges)
    assert not trajectory.troubles
    _check(trajectory)


def _check(trajectory: Trajectory) -> None:
    for exchange in trajectory.exchanges:
        assert not exchange.untrainable
        messages = [{"role": m.role, "content": m.text} for m in trajectory.messages_of(exchange)]
        asked = read_request(msgspec.Raw(msgspec.json.encode(messages)), None)
        assert trajectory.ids_of(exchange).tolist() == prompt_ids(asked)
        assert exchange.tokens is not None
        generated = answer_ids("", trajectory.answer_of(exchange).text, ())
        versions = [version for version, _ in exchange.tokens.versions]
        assert versions == sorted(versions)
        assert sum(count for _, count in exchange.tokens.versions) == len(generated)
    samples = trajectory.samples()
    trained = Counter(exchange for sample in samples for exchange in sample.trained)
    assert trained == Counter(range(len(trajectory.exchanges)))
