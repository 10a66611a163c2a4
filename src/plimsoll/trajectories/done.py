"""An answered request, as the gateway hands it over."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from plimsoll.core.versions import Version
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.records import Finish

__all__ = ["Done", "Ids"]


class Ids(Protocol):
    """The ids that an engine returned, unchanged."""

    @property
    def prompt(self) -> list[int] | msgspec.Raw | None:
        """As JSON where nobody has read it: only what a prompt adds is ever read."""
        ...

    @property
    def answer(self) -> list[int]: ...

    @property
    def logprobs(self) -> list[float] | None: ...


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request."""

    answer: Message
    finish: Finish
    dialect: str
    at: float
    seconds: float
    version: Version
    """The version when the request was sent."""
    versions: Sequence[tuple[Version, int]] = ()
    """Which version generated how many of the answer's ids, in order; none: all by `version`."""
    prompt_tokens: int | None = None
    """What the upstream counted, whether it returned ids or not."""
    answer_tokens: int | None = None
    tokens: Ids | None = None
