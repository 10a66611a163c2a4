"""The last look at the sandboxes of a run: workers that had to be killed left theirs."""

import asyncio
import logging

from plimsoll.core.errors import SandboxError, UsageError
from plimsoll.runs.config import Config
from plimsoll.runs.inventories import find_inventory
from plimsoll.sandboxes.reaper import reap

__all__ = ["reap_at_end"]

_SECONDS = 20.0
"""What it may take: whoever starts next does the rest."""
log = logging.getLogger(__name__)


async def reap_at_end(config: Config) -> None:
    """Remove what nobody owns any more, on this host or the config's engine. Ends no run."""
    try:
        async with asyncio.timeout(_SECONDS), find_inventory(config.run.backend, config) as stock:
            await reap(stock)
    except (SandboxError, UsageError, TimeoutError) as error:
        log.warning(
            "what killed workers may have left was not removed (%s); plimsoll clean does",
            str(error) or f"it takes longer than {_SECONDS:g} s",
        )
