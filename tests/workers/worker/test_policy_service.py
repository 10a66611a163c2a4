"""The policy of a run: the command line overrides the config, and servers are probed first."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from plimsoll.agents.registry import make_agent
from plimsoll.config.policy import PolicyConfig
from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures
from plimsoll.workers.worker.policy_service import PolicyService, PolicySpec, policy_for
from policy_agents import serve_in_thread

SHELL, ORACLE = make_agent("shell"), make_agent("oracle")
CONFIG = PolicyConfig(urls=("http://config/v1",), model="theirs", turns=7, tokens=100, body_mb=1)


def test_the_command_line_takes_precedence_over_the_config():
    policy = policy_for(SHELL, CONFIG, ("http://mine/v1",), "mine", 3)
    assert policy is not None
    assert (policy.urls, policy.model, policy.limits.turns) == (("http://mine/v1",), "mine", 3)


def test_the_config_provides_omitted_options():
    policy = policy_for(SHELL, CONFIG, (), None, None)
    limits = Limits(turns=7, tokens=100, concurrent=16, body_bytes=1 << 20)
    assert policy == PolicySpec(("http://config/v1",), "theirs", limits)


def test_an_agent_without_requests_rejects_a_policy_option_but_not_a_configured_policy():
    assert policy_for(ORACLE, CONFIG, (), None, None) is None
    with pytest.raises(UsageError, match="oracle asks no policy"):
        policy_for(ORACLE, CONFIG, ("http://mine/v1",), None, None)


def test_an_agent_with_requests_needs_a_policy():
    with pytest.raises(UsageError, match="shell needs a policy"):
        policy_for(SHELL, PolicyConfig(), (), None, None)


def test_a_probe_finds_the_capabilities_of_a_server_or_the_error(tmp_path: Path):
    with serve_in_thread(
        lambda _: "Hello.", ServerFeatures(token_ids=False, context=4096)
    ) as server:
        found = asyncio.run(PolicySpec((server.url,), None, Limits()).probed()).found
    assert found is not None
    assert (found.model, found.context, found.token_ids) == ("scripted", 4096, False)
    with pytest.raises(PolicyError, match=r"cannot be reached.*nothing was started"):
        asyncio.run(PolicySpec((server.url,), None, Limits()).probed())


def test_a_probe_of_a_script_reads_it(tmp_path: Path):
    script = tmp_path / "says.toml"
    script.write_text("otherwise = 'Hi.'\n")
    assert asyncio.run(PolicySpec((f"scripted:{script}",), None, Limits()).probed()).found is None
    script.write_text("otherwise = 3\n")
    with pytest.raises(UsageError, match="otherwise"):
        asyncio.run(PolicySpec((f"scripted:{script}",), None, Limits()).probed())


async def test_a_service_runs_a_gateway_while_it_is_entered(tmp_path: Path):
    script = tmp_path / "says.toml"
    script.write_text("otherwise = 'Hi.'\n")
    policy = PolicySpec((f"scripted:{script}",), None, Limits(turns=1))
    async with PolicyService(policy, tmp_path / "blobs") as service:
        policy = service.policy
        assert (policy.model, policy.limits.turns) == ("scripted", 1)
        session = await policy.gateway.open(tmp_path / "s", blobs=policy.blobs)
        access = session.access(policy.gateway.port)
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
        headers = {"authorization": f"Bearer {access.key}"}
        url = f"{access.openai}/chat/completions"
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(url, json=body) as reply,
        ):
            answer = await reply.json()
        assert answer["choices"][0]["message"]["content"] == "Hi."
    assert session.has_ended
    with pytest.raises(AssertionError, match="not entered"):
        service.policy  # noqa: B018
