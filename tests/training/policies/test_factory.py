"""Checks of servers before a model is loaded."""

import pytest

from plimsoll.config.file import Config
from plimsoll.core.errors import PolicyError
from plimsoll.gateway.upstreams.scripted.script import Turn
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures, serve_script
from plimsoll.training.policies.factory import check_servers


def config(url: str) -> Config:
    return Config.model_validate(
        {
            "policy": {"urls": [url]},
            "training": {"policy": "openai", "server": "path", "model": "models/qwen"},
        }
    )


async def test_servers_with_all_capabilities_for_training_are_accepted():
    async with serve_script(lambda _: "Hello.") as server:
        await check_servers(config(server.url))


@pytest.mark.parametrize(
    ("offers", "missing"),
    [
        (ServerFeatures(token_ids=False), "missing: token ids of answers, token ids of prompts"),
        (ServerFeatures(logprobs=False), "missing: log probabilities"),
    ],
)
async def test_servers_without_capabilities_for_training_are_refused(
    offers: ServerFeatures, missing: str
):
    async with serve_script(lambda _: "Hello.", offers) as server:
        with pytest.raises(PolicyError, match=f"cannot be trained.*{missing}.*Nothing was started"):
            await check_servers(config(server.url))


async def test_a_silent_server_may_be_paused_and_is_accepted():
    """A killed trainer may have left it paused: it continues once it has weights."""
    async with serve_script(lambda _: Turn(failure=503)) as server:
        await check_servers(config(server.url))
        assert server.requests, "no request was sent"
