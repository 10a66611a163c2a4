"""What the gateway asks of whatever answers for the policy."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from plimsoll.core.versions import Version
from plimsoll.gateway.forms import Answer, Chunk, Request

__all__ = ["Call", "Upstream"]


@dataclass(frozen=True, slots=True)
class Call:
    """Whose request it is. Requests of one session go to one replica while it is up."""

    session: str
    ids: bool = True
    """Ask for token ids and log probabilities where the upstream can return them."""
    seed: int | None = None
    """What to sample with, where the agent does not say it; the upstream's choice where None."""


class Upstream(Protocol):
    """Answers requests. Raises `Refusal` where it cannot: context_length, bad_request, busy,
    upstream, timeout, unsupported. Cancelling a call cancels it at the server."""

    @property
    def version(self) -> Version:
        """The version of the weights that generates now."""
        ...

    @property
    def streams(self) -> bool:
        """Whether streams carry all that whole answers do. Where not, the gateway asks for
        whole answers and streams them to the agent itself."""
        ...

    async def answer(self, request: Request, call: Call) -> Answer: ...

    def stream(
        self, request: Request, call: Call
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Chunk]]]:
        """Pieces as they arrive: those of one read from the network come together."""
        ...

    async def count(self, request: Request, call: Call) -> int:
        """How many tokens the prompt has. `Refusal("unsupported")` where nobody can say."""
        ...

    async def close(self) -> None: ...
