"""Python wheels for an image's Python, and the uv program out of its own wheel.

npm packages: a cache that npm and npx can install from offline.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import Asset
from plimsoll.tasks.assets.commands import DiskFull, run
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["any_pip", "host_python", "stage_npm", "stage_uv", "stage_wheels"]

HOW = "pip and uv look for packages among the wheels (find-links, no index)"
VERSION_OF = "import sys; print('%d.%d' % sys.version_info[:2])"


@cache
def host_python() -> str:
    """The version of the host's own Python, which images that are the host's system have."""
    return _version("/usr/bin/python3") or f"{sys.version_info[0]}.{sys.version_info[1]}"


def stage_wheels(
    place: AssetStore, requirements: Sequence[str], python: str, given: Path | None
) -> list[Asset]:
    """Wheels for the requirements and all that they need; of a source package one is built."""
    with place.partial() as made:
        files = _collect(made, requirements, python, given)
        return [_put(place, file) for file in files]


def stage_uv(place: AssetStore, requirement: str, given: Path | None) -> list[Asset]:
    """The uv wheel, and uv and uvx out of it."""
    with place.partial() as made:
        (wheel,) = _download(made, ["--no-deps", requirement], host_python(), given)
        version = wheel.name.split("-")[1]
        programs = made / "programs"
        programs.mkdir()
        try:
            _unpack(wheel, programs)
        except zipfile.BadZipFile:
            raise AssetError(f"{wheel.name} is damaged") from None
        if not (programs / "uv").exists():
            raise AssetError(f"{wheel.name} holds no uv program")
        path = f"tools/uv-{version}"
        found = place.put(programs, path)
        how = "uv and uvx in PATH, and what uv's installer installs"
        tool = Asset(Kind.UV_TOOL, "uv", version, found.digest, found.size, path, None, how)
        return [tool, _put(place, wheel)]


def _unpack(wheel: Path, programs: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if (base := name.rpartition("/")[2]) in ("uv", "uvx") and "/scripts/" in name:
                (programs / base).write_bytes(archive.read(name))
                (programs / base).chmod(0o755)


def _put(place: AssetStore, wheel: Path) -> Asset:
    path = f"wheels/{wheel.name}"
    name, version = wheel.name.split("-")[:2]
    found = place.put(wheel, path)
    return Asset(Kind.WHEELS, name, version, found.digest, found.size, path, None, HOW)


def _collect(
    made: Path, requirements: Sequence[str], python: str, given: Path | None
) -> list[Path]:
    try:
        return _download(made, requirements, python, given)
    except DiskFull:
        raise
    except AssetError as error:
        # No wheel for one of them: build it, which takes a Python of the same version.
        builder = _interpreter(python)
        if builder is None:
            raise AssetError(f"{error} (no Python {python} here to build a wheel with)") from None
        try:
            return _pip(made, [builder, "-m", "pip", "wheel", "-w"], requirements, given)
        except DiskFull:
            raise
        except AssetError as second:
            raise AssetError(str(second)) from None


def _download(
    made: Path, requirements: Sequence[str], python: str, given: Path | None
) -> list[Path]:
    command = [any_pip(), "-m", "pip", "download", "--only-binary=:all:"]
    return _pip(made, [*command, "--python-version", python, "-d"], requirements, given)


def _pip(
    made: Path, command: Sequence[str], requirements: Sequence[str], given: Path | None
) -> list[Path]:
    target, temporary = made / "wheels", made / "tmp"
    shutil.rmtree(target, ignore_errors=True)
    temporary.mkdir(exist_ok=True)
    source = ["--no-index", "--find-links", str(given)] if given else []
    options = ["--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    run([*command, str(target), *options, *source, *requirements], cwd=made,
        env={"TMPDIR": str(temporary)})  # fmt: skip
    return sorted(target.glob("*.whl"))


@cache
def any_pip() -> str:
    """A Python that has pip: Plimsoll's own may not."""
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        if _runs([python, "-m", "pip", "--version"]) is not None:
            return python
    raise AssetError("no Python with pip on this host: python3 -m ensurepip, or give wheels by "
                     "hand on a host that has it")  # fmt: skip


@cache
def _interpreter(version: str) -> str | None:
    for python in (sys.executable, f"python{version}", "/usr/bin/python3", "python3"):
        if _version(python) == version and _runs([python, "-m", "pip", "--version"]) is not None:
            return python
    return None


@cache
def _version(python: str) -> str | None:
    said = _runs([python, "-c", VERSION_OF])
    return said.strip() if said and re.fullmatch(r"\d+\.\d+\s*", said) else None


def _runs(argv: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--no-save")


def stage_npm(
    place: AssetStore, packages: Sequence[str], *, old: Path | None, given: Path | None
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
