"""Tables about the policy and the agents that use it: [policy] and [agents].

[policy]
urls = ["http://gpu-1:8000/v1", "http://gpu-2:8000/v1"]
model = "qwen3-8b"

[agents]
layer = "/mnt/shared/agents"
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from plimsoll.config.table import Table

__all__ = ["AgentsConfig", "PolicyConfig"]


class PolicyConfig(Table):
    """The policy's servers, and the limits of a trial."""

    urls: tuple[StrictStr, ...] = ()
    """Replicas of one OpenAI-compatible server, or one `scripted:FILE`."""
    model: StrictStr | None = None
    """The model name on the servers; by default, their only model."""
    seed: StrictInt | None = None
    """The seed of sampling, combined with trial and turn. A lost trial that runs again gets the
    same answers, and identical replicas give the members of a group different answers. By default,
    runs that train use [training] seed; for others the servers choose."""
    seeded: StrictBool = True
    """Whether requests carry a seed. Servers may sample slower with one."""
    sampling: Literal["model", "asked"] | None = None
    """`model`: sample from the unmodified model, at temperature 1 without cut-offs and penalties,
    whatever agents ask for and servers have as defaults: log probabilities reflect neither.
    `asked`: as agents ask and servers default. By default, `model` in runs that train, else
    `asked`."""
    turns: StrictInt | None = Field(default=None, ge=1)
    """The limit of answers in a trial."""
    tokens: StrictInt | None = Field(default=None, ge=1)
    """The limit of tokens in a trial, prompts and answers."""
    concurrent: StrictInt = Field(default=16, ge=1)
    """The limit of requests in flight in one trial."""
    body_mb: StrictInt = Field(default=32, ge=1)
    """The largest request after decompression, in MiB."""
    media_hosts: tuple[StrictStr, ...] = ()
    """Hosts whose images, audio and video requests may name by URL, such as `*.example.org` for
    all names below one. The policy's servers fetch them. By default, only `data:` URLs."""


class AgentsConfig(Table):
    """The installed agents."""

    layer: StrictStr | None = None
    """The folder that `plimsoll bake` made."""

    @property
    def folder(self) -> Path | None:
        return None if self.layer is None else Path(self.layer)
