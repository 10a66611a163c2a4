"""The external parts that tests need. A test whose part is missing is skipped, or fails."""

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.errors import PlimsollError
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import SandboxSpec

__all__ = ["IMAGES", "NIGHTLY", "need", "spec", "why_no_compose", "why_no_daemon"]

NIGHTLY = bool(os.environ.get("PLIMSOLL_TEST_NIGHTLY"))
"""True in `make test-nightly`, which runs the long tests at full length."""

IMAGES = ("debian:12", "debian:bookworm-slim", "host-system")
"""The images of the tests' containers. A Docker daemon must have them: there may be no registry."""


def need(part: str, reason: str | None) -> None:
    """Skip the test if a part is missing; fail it if PLIMSOLL_REQUIRE names the part.

    `reason` says why the part is missing. It is None if the part is available.
    """
    if reason is None:
        return
    if part in os.environ.get("PLIMSOLL_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"{part} is named in PLIMSOLL_REQUIRE, but {reason}")
    pytest.skip(f"{part}: {reason}")


def spec(**more: Any) -> SandboxSpec:
    """The spec of a test's sandbox."""
    return SandboxSpec(Labels("test", "test.1", this_process(), time.time() + 600), **more)


def why_no_daemon(url: str, certificates: Path | None = None) -> str | None:
    """The reason that tests cannot use the Docker daemon at an address, or None."""

    async def ask() -> str | None:
        endpoint = find_endpoint(url, None, os.environ, certificates=certificates)
        async with Daemon(endpoint) as daemon:
            missing = [name for name in IMAGES if await daemon.image(name) is None]
        if not missing:
            return None
        return f"the daemon at {url} has no {', '.join(missing)}; .ci/daemons starts one that has"

    try:
        return asyncio.run(ask())
    except PlimsollError as error:
        return str(error)


def why_no_compose() -> str | None:
    """The reason that tests cannot use Compose V2, or None."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        asked = [*command, "version", "--short"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.lstrip("v").startswith("2"):
            return None
    return "neither `docker compose` nor `docker-compose` is Compose V2"
