"""An inference server that takes new weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plimsoll.core.errors import PolicyError

__all__ = ["Target", "WeightServer", "confirm"]


@dataclass(frozen=True, slots=True)
class Target:
    """Weights for a server."""

    label: str
    """Their name on the server, unique over all versions of all runs."""
    folder: Path | None = None
    """Their Hugging Face folder; None for weights that the server already has."""


class WeightServer(Protocol):
    """One replica.

    All methods raise `UpstreamFailure` if the server does not answer properly, and `PolicyError`
    if it reports that it did not do as asked.
    """

    @property
    def url(self) -> str: ...

    @property
    def stuck(self) -> str:
        """The route of the call that was cancelled."""
        ...

    async def load(self, target: Target) -> None:
        """Load the target; return once the server reports it. The server is never left paused,
        even after an error."""
        ...

    async def deviation(self, target: Target) -> str | None:
        """The weights that the server reports, if they are not the target; else None."""
        ...


async def confirm(server: WeightServer, target: Target) -> None:
    """Raise `PolicyError` if the server reports other weights than the target."""
    deviation = await server.deviation(target)
    if deviation is not None:
        raise PolicyError(
            f"the policy at {server.url} was given the weights {target.label}, but reports that "
            f"it serves {deviation}"
        )
