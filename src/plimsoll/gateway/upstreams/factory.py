"""Creates the upstream of a run from the configured policy: URLs of servers, or a script."""

import os
from collections.abc import Sequence
from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.gateway.upstreams.gate import Gate, Pauses
from plimsoll.gateway.upstreams.openai_server import (
    OpenAIServer,
    Timeouts,
    http_session,
    normal_url,
)
from plimsoll.gateway.upstreams.probe import probe_replicas
from plimsoll.gateway.upstreams.replicas import Replicas
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import load_script

__all__ = ["KEY_VARIABLE", "make_upstream", "probe_policy"]

KEY_VARIABLE = "PLIMSOLL_POLICY_KEY"
"""The environment variable with the key of the policy's servers."""
SCRIPTED = "scripted:"


async def probe_policy(
    urls: Sequence[str], *, model: str | None = None, key: str | None = None
) -> Capabilities | None:
    """The common capabilities of all running servers; None for a script.

    Raises `PolicyError` if no server is up or if one differs from the others, and `UsageError` if
    the URLs are invalid.
    """
    if len(urls) == 1 and urls[0].startswith(SCRIPTED):
        load_script(Path(urls[0].removeprefix(SCRIPTED)))
        return None
    return await probe_replicas(_bases(urls), model, key or _key())


async def make_upstream(
    urls: Sequence[str],
    *,
    model: str | None = None,
    timeouts: Timeouts | None = None,
    patience: float = 60.0,
    capabilities: Capabilities | None = None,
    plain: bool = False,
) -> Gate:
    """Create the upstream. Several URLs are replicas of one policy; `scripted:FILE` is a script.

    The servers are probed, unless `capabilities` are given. `patience` is how long a request waits
    while no replica is up, in seconds, without the time of pauses. `plain` samples from the
    unmodified distribution of the model, for training.
    """
    if len(urls) == 1 and urls[0].startswith(SCRIPTED):
        return Gate(ScriptedPolicy(Path(urls[0].removeprefix(SCRIPTED))))
    bases = _bases(urls)
    key = _key()
    found = capabilities or await probe_replicas(bases, model, key)
    http = http_session()
    servers = [
        OpenAIServer(
            http,
            base,
            model=found.model,
            key=key,
            supported=found.supported_fields,
            timeouts=timeouts,
            context=found.context,
            plain=plain,
        )
        for base in bases
    ]
    pauses = Pauses()
    replicas = Replicas(
        http, servers, streams=found.streams_all, patience=patience, clock=pauses.clock
    )
    return Gate(replicas, pauses)


def _bases(urls: Sequence[str]) -> list[str]:
    if not urls or any(url.startswith(SCRIPTED) for url in urls):
        raise UsageError("a policy must be one or more URLs, or one scripted:FILE")
    return [normal_url(url) for url in urls]


def _key() -> str | None:
    return os.environ.get(KEY_VARIABLE)
