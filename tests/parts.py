"""The parts of the world that tests run on, and what becomes of a test whose part is absent."""

import os
import time
from typing import Any

import pytest

from plimsoll.core.ids import Labels
from plimsoll.sandboxes.owners import myself
from plimsoll.sandboxes.protocol import SandboxSpec

__all__ = ["need", "spec"]


def need(part: str, reason: str | None) -> None:
    """Skip for `reason` where a part is absent; fail where PLIMSOLL_REQUIRE names it.

    `reason` is None where the part is there.
    """
    if reason is None:
        return
    if part in os.environ.get("PLIMSOLL_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"{part} is named in PLIMSOLL_REQUIRE, but {reason}")
    pytest.skip(f"{part}: {reason}")


def spec(**more: Any) -> SandboxSpec:
    """What a test's sandbox is started with."""
    return SandboxSpec(Labels("test", "test.1", myself(), time.time() + 600), **more)
