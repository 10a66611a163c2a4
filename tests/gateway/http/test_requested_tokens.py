"""Token ids and log probabilities reach the agents that ask for them, and no others."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_parts import serving

from plimsoll.gateway.completions import NoHistory, Request
from plimsoll.gateway.dialects.chat.token_fields import without_tokens
from plimsoll.gateway.upstreams.answers import StreamReader
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.trajectories.token_sequence import unpack_ids, unpack_logprobs

CHAT = "/v1/chat/completions"
ASKS = [
    {},
    {"logprobs": True},
    {"return_token_ids": True},
    {"logprobs": True, "return_token_ids": True},
    {"logprobs": False, "return_token_ids": False},
]


class Whole(ScriptedPolicy):
    """An upstream with whole answers only, which the gateway turns into streams."""

    @property
    def streams(self) -> bool:
        return False


def _objects(body: bytes) -> list[dict[str, Any]]:
    """The objects of an answer: one, or those of a stream."""
    if not body.startswith(b"data: "):
        return [json.loads(body)]
    return [json.loads(event[6:]) for event in body.decode().split("\n\n") if event[6:7] == "{"]


def _ids(objects: list[dict[str, Any]]) -> list[int]:
    choices = [each["choices"][0] for each in objects if each["choices"]]
    return [token for choice in choices for token in choice.get("token_ids") or ()]


def _logprobs(objects: list[dict[str, Any]]) -> list[float]:
    choices = [each["choices"][0] for each in objects if each["choices"]]
    found = [(choice.get("logprobs") or {}).get("content") or () for choice in choices]
    return [entry["logprob"] for entries in found for entry in entries]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("source", [ScriptedPolicy, Whole])
@pytest.mark.parametrize("asks", ASKS, ids=str)
async def test_agents_that_ask_get_the_recorded_tokens_and_others_get_none(
    asks: dict[str, bool], source: type[ScriptedPolicy], stream: bool, tmp_path: Path
):
    async with serving(source(lambda _: 'It says "token_ids":[7] here.'), tmp_path) as served:
        status, body = await served.ask(CHAT, stream=stream, **asks)
        trajectory = await served.read()
    assert status == 200
    objects = _objects(body)
    [exchange] = trajectory.exchanges
    assert exchange.tokens is not None
    recorded = [*trajectory.ids_of(exchange), *unpack_ids(exchange.tokens.answer)]
    prompt = [token for each in objects for token in each.get("prompt_token_ids") or ()]
    assert [*prompt, *_ids(objects)] == (recorded if asks.get("return_token_ids") else [])
    logprobs = list(unpack_logprobs(exchange.tokens.logprobs))
    assert _logprobs(objects) == (logprobs if asks.get("logprobs") else [])


FUNCTION = {"name": "f", "arguments": '"token_ids":[9]'}
PIECE = {
    "index": 0,
    "delta": {
        "tool_calls": [
            {"index": 0, "id": "x", "function": {"name": "f", "arguments": '"token_ids":[9]'}}
        ]
    },
    "logprobs": {"content": [{"token": '"', "logprob": -1.0, "bytes": [34], "top_logprobs": []}]},
    "finish_reason": None,
    "token_ids": [1, 2],
    "token_versions": [["3", 2]],
}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("none", [[], ["logprobs"], ["token_ids", "token_versions"]], ids=str)
@pytest.mark.parametrize("asks", ASKS[:4], ids=str)
def test_a_piece_loses_nothing_else_in_any_layout(
    asks: dict[str, bool], none: list[str], order: int, separators: tuple[str, str]
):
    request = Request(
        model="m",
        history=NoHistory(),
        messages=msgspec.Raw(b"[]"),
        wants_logprobs=asks.get("logprobs", False),
        wants_ids=asks.get("return_token_ids", False),
    )
    choice = dict([*PIECE.items()][::order]) | dict.fromkeys(none)
    data = json.dumps({"id": "c", "choices": [choice]}, separators=separators).encode()
    sent = json.loads(without_tokens(StreamReader("there").read(data), request))
    unwanted = [] if request.wants_logprobs else ["logprobs"]
    unwanted += [] if request.wants_ids else ["token_ids", "token_versions"]
    assert {**sent["choices"][0], **dict.fromkeys(unwanted)} == choice | dict.fromkeys(unwanted)
    assert not any(sent["choices"][0].get(name) for name in unwanted)
    assert sent["id"] == "c"
