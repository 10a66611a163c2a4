"""Health check of an environment."""

import asyncio
import time

from plimsoll.core.errors import SetUpError
from plimsoll.sandboxes.protocol import Sandbox
from plimsoll.tasks.task_file import HealthcheckConfig

__all__ = ["wait_until_healthy"]


async def wait_until_healthy(check: HealthcheckConfig, sandbox: Sandbox) -> None:
    """Run the check until it passes. Failures in the start period do not count."""
    began = time.monotonic()
    failures = 0
    while True:
        done = await sandbox.exec(check.command, timeout=check.timeout_sec)
        if done.ok:
            return
        starting = time.monotonic() - began < check.start_period_sec
        if not starting:
            failures += 1
        if failures >= check.retries:
            times = f"{failures} times" if failures > 1 else "once"
            raise SetUpError(f"healthcheck {check.command!r}, tried {times}: {done.complaint()}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
