"""Commands that staging runs on the host: git, pip and npm."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from plimsoll.core.errors import AssetError

__all__ = ["DiskFull", "is_disk_full", "run_command"]

TIMEOUT = 3600.0
"""Seconds for one command."""
_NPM_DETAIL = re.compile(r"npm error (code|syscall|errno|path|dest)\b", re.IGNORECASE)
"""Lines that npm prints before the actual error."""
NO_SPACE = ("No space left on device", "Disk quota exceeded", "Out of diskspace", "ENOSPC")


class DiskFull(AssetError):
    """The storage has no space for the next asset."""


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def run_command(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> str:
    """Run a program and return its output; `AssetError` carries its error message."""
    if shutil.which(argv[0]) is None:
        raise AssetError(f"{argv[0]} is not installed on this host")
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssetError(f"{argv[0]} did not finish within {TIMEOUT:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    if any(marker in done.stdout + done.stderr for marker in NO_SPACE):
        raise DiskFull(f"no space left in {cwd}")
    raise AssetError(_error_message(done.stderr) or f"{argv[0]} failed (exit {done.returncode})")


def _error_message(text: str) -> str:
    """Return the line with the error; some programs print advice after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("fatal:", "error:", "npm error"))]
    messages = [line for line in errors if _NPM_DETAIL.match(line) is None] or errors
    line = (messages or lines or [""])[0 if messages else -1]
    return re.sub(r"^(fatal:|error:|npm error) *", "", line, flags=re.IGNORECASE)[:300]
