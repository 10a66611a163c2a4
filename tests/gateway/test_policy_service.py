"""Options of the policy service of a run: patience and limits."""

import time
from collections.abc import Iterator

import aiohttp
import pytest
from gateway_parts import HELLO

from plimsoll.agents.registry import make_agent
from plimsoll.config.policy import PolicyConfig
from plimsoll.core.errors import UsageError
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.workers.worker.policy_service import PolicyService, PolicySpec, policy_for
from ports import held_port

SHELL = make_agent("shell")


@pytest.fixture
def away() -> Iterator[str]:
    """The URL of a server that is down."""
    with held_port() as port:
        yield f"http://127.0.0.1:{port}/v1"


async def test_an_unavailable_policy_is_waited_for_within_the_patience(tmp_path, away: str):
    found = Capabilities(url=away, model="scripted", text=True)
    spec = PolicySpec((away,), None, Limits(), found=found, patience=0.2)
    async with PolicyService(spec, tmp_path / "blobs") as service:
        session = await service.policy.gateway.open(tmp_path / "s", blobs=tmp_path / "blobs")
        access = session.access(service.policy.gateway.port)
        began = time.monotonic()
        headers = {"Authorization": f"Bearer {access.key}"}
        url, body = f"{access.openai}/chat/completions", {"model": "m", "messages": HELLO}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(url, json=body) as reply,
        ):
            assert reply.status == 503
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(("name", "value"), [("body_mb", 1 << 40), ("concurrent", 1 << 20)])
def test_an_excessive_limit_is_reported(name, value):
    config = PolicyConfig(urls=("http://there/v1",), **{name: value})
    with pytest.raises(UsageError, match=rf"\[policy\] {name} is {value}: give \d+ or less"):
        policy_for(SHELL, config, (), None, None)
