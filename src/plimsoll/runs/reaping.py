"""The last look at the sandboxes of a run: workers that had to be killed left theirs."""

import asyncio
import logging

from plimsoll.core.errors import SandboxError, UsageError
from plimsoll.runs.cleaning import choose_expired
from plimsoll.runs.config import Config
from plimsoll.runs.inventories import open_stock
from plimsoll.sandboxes.inventory import Item

__all__ = ["reap_at_end"]

_SECONDS = 20.0
"""What it may take: whoever starts next does the rest."""
log = logging.getLogger(__name__)


async def reap_at_end(config: Config) -> None:
    """Remove what nobody owns any more, on this host or the config's engine. Ends no run."""
    try:
        async with asyncio.timeout(_SECONDS), open_stock(config.run.backend, config) as stock:
            await choose_expired(stock).carry_out(_note)
    except (SandboxError, UsageError, TimeoutError) as error:
        log.warning(
            "what killed workers may have left was not removed (%s); plimsoll clean does", error
        )


def _note(backend: str, item: Item, why: str) -> None:
    if why:
        log.warning("%s %s on %s is left: %s", item.kind, item.id, backend, why)
