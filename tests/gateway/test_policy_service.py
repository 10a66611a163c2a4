"""What a run may ask of the gateway: how long it waits, and limits that are none."""

import time

import aiohttp
import pytest
from gateway_parts import HELLO

from plimsoll.agents.registry import make_agent
from plimsoll.core.errors import UsageError
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.gateway.upstreams.scripted_server import serve_script
from plimsoll.runs.config import PolicyConfig
from plimsoll.runs.policies import PolicyService, WantedPolicy, policy_for

SHELL = make_agent("shell")


async def test_a_policy_that_is_away_is_waited_for_as_long_as_is_wanted(tmp_path):
    async with serve_script(lambda _: "Hello.") as server:
        pass
    found = Capabilities(url=server.url, model="scripted", text=True)
    wanted = WantedPolicy((server.url,), None, Limits(), found=found, patience=0.2)
    async with PolicyService(wanted, tmp_path / "blobs") as service:
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


def test_how_long_is_sixty_seconds_unless_told():
    config = PolicyConfig(urls=("http://there/v1",))
    wanted = policy_for(SHELL, config, (), None, None)
    longer = policy_for(SHELL, config, (), None, None, patience=600.0)
    assert wanted is not None and longer is not None
    assert (wanted.patience, longer.patience) == (60.0, 600.0)


@pytest.mark.parametrize(("name", "value"), [("body_mb", 1 << 40), ("concurrent", 1 << 20)])
def test_a_limit_beyond_all_measure_is_named(name, value):
    config = PolicyConfig(urls=("http://there/v1",), **{name: value})
    with pytest.raises(UsageError, match=rf"\[policy\] {name} is {value}: give \d+ or less"):
        policy_for(SHELL, config, (), None, None)
