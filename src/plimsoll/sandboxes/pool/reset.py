"""The reset of a used sandbox, with proof that it is clean; without proof it is not reused."""

import asyncio
import logging
from typing import TypeGuard

from plimsoll.core.errors import PlimsollError, SandboxUnavailable, SandboxUnsupported
from plimsoll.core.permissions import NetworkPolicy
from plimsoll.sandboxes.pool.lease import Lease
from plimsoll.sandboxes.protocol import Resettable, Sandbox

__all__ = ["liveness_error", "reset_sandbox", "take_baseline"]

_RESET_SECONDS = 20.0
_STATUS_SECONDS = 5.0

_log = logging.getLogger(__name__)


def _is_resettable(sandbox: Sandbox) -> TypeGuard[Resettable]:
    methods = (getattr(sandbox, name, None) for name in ("baseline", "reset"))
    return all(callable(method) for method in methods)


async def take_baseline(sandbox: Sandbox) -> str:
    """Take the baseline of a new sandbox. Returns why it cannot be reset; "" if it can.

    Raises `SandboxUnavailable` if the sandbox died.
    """
    if not _is_resettable(sandbox):
        return "its backend has no reset"
    try:
        async with asyncio.timeout(_RESET_SECONDS):
            await sandbox.baseline()
    except TimeoutError:
        return f"its baseline took longer than {_RESET_SECONDS:g} s"
    except SandboxUnsupported as error:
        return str(error)
    except SandboxUnavailable as error:
        if await liveness_error(sandbox):
            raise
        return str(error)
    return ""


async def reset_sandbox(lease: Lease, network: NetworkPolicy) -> str:
    """Reset a sandbox. Returns why it must not be reused; "" if it is proven clean."""
    try:
        async with asyncio.timeout(_RESET_SECONDS):
            return await _reset_sandbox(lease, network)
    except TimeoutError:
        return f"its reset took longer than {_RESET_SECONDS:g} s"
    except PlimsollError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - the boundary: a bug costs one sandbox
        _log.exception("a sandbox could not be reset")
        return f"its reset failed: {type(error).__name__}"


async def _reset_sandbox(lease: Lease, network: NetworkPolicy) -> str:
    sandbox = lease.pooled.sandbox
    if not _is_resettable(sandbox):
        return "it cannot be reset"
    for served in lease.served:
        await served.close()
    if lease.network != network:
        # First, so that running processes do not get the restored network.
        await sandbox.kill_all()
        await sandbox.set_network(network)
    if doubt := await sandbox.reset():
        return doubt
    status = await sandbox.status()
    if not status.alive:
        return f"it died: {status.reason}"
    if status.processes:
        return "processes are left in it"
    lease.pooled.oom_kills = status.oom_kills or 0
    return ""


async def liveness_error(sandbox: Sandbox) -> str:
    """Why an idle sandbox cannot be used; "" if it can."""
    try:
        async with asyncio.timeout(_STATUS_SECONDS):
            status = await sandbox.status()
    except TimeoutError:
        return f"it did not answer within {_STATUS_SECONDS:g} s"
    except PlimsollError as error:
        return f"it died while idle: {error}"
    return "" if status.alive else f"it died while idle: {status.reason}"
