"""npm packages: a cache that npm and npx can install from offline."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from plimsoll.tasks.assets.asset import Asset
from plimsoll.tasks.assets.commands import run
from plimsoll.tasks.assets.place import Place
from plimsoll.tasks.lint.fetch import Kind

__all__ = ["stage_npm"]

QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--no-save")


def stage_npm(
    place: Place, packages: Sequence[str], *, old: Path | None, given: Path | None
) -> Asset:
    """A cache with the packages and all that they need, and with what `old` holds."""
    with place.partial() as made:
        cache, project = made / "cache", made / "project"
        if old is not None:
            shutil.copytree(old, cache, symlinks=True)
        if given is not None:
            shutil.copytree(given, cache, symlinks=True, dirs_exist_ok=True)
        project.mkdir()
        home = {"npm_config_cache": str(cache), "HOME": str(made), "TMPDIR": str(made)}
        offline = ("--offline",) if given is not None else ()
        run(["npm", "install", *QUIET, *offline, *packages], cwd=project, env=home)
        for package in packages:
            # npx asks for a package's whole description, which an install does not.
            exe = ["npm", "exec", "--yes", *QUIET, *offline, f"--package={package}"]
            run([*exe, "--", "node", "--version"], cwd=made, env=home)
        for left in ("_logs", "_npx", "_cacache/tmp"):
            shutil.rmtree(cache / left, ignore_errors=True)
        named = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
        found = place.put(cache, path := f"npm/{named}")
    how = "npm and npx install from it (offline, on a copy of the cache)"
    return Asset(Kind.NPM, "npm", " ".join(packages), found.digest, found.size, path, None, how)
