"""The programs that staging runs: git, pip, npm."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from plimsoll.core.errors import AssetError

__all__ = ["DiskFull", "is_disk_full", "run"]

LONGEST = 3600.0
_NPM_DETAIL = re.compile(r"npm error (code|syscall|errno|path|dest)\b", re.IGNORECASE)
"""npm names these before it says what is wrong."""
NO_SPACE = ("No space left on device", "Disk quota exceeded", "Out of diskspace", "ENOSPC")


class DiskFull(AssetError):
    """The storage has no room for the next asset."""


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> str:
    """Run a program to its end and return what it printed; `AssetError` in its own words."""
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
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssetError(f"{argv[0]} did not end within {LONGEST:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    if any(words in done.stdout + done.stderr for words in NO_SPACE):
        raise DiskFull(f"no space left in {cwd}")
    raise AssetError(_complaint(done.stderr) or f"{argv[0]} failed (exit {done.returncode})")


def _complaint(text: str) -> str:
    """The line that says what is wrong; some programs end with advice."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("fatal:", "error:", "npm error"))]
    told = [line for line in errors if _NPM_DETAIL.match(line) is None] or errors
    line = (told or lines or [""])[0 if told else -1]
    return re.sub(r"^(fatal:|error:|npm error) *", "", line, flags=re.IGNORECASE)[:300]
