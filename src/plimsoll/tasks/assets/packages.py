"""Staged packages: Python wheels, the uv program, and npm packages.

Wheels are for the Python of an image. The uv program comes from its wheel. npm packages are a
cache that npm and npx can install from offline.
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
from plimsoll.tasks.assets.commands import DiskFull, run_command
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["host_python", "python_with_pip", "stage_npm", "stage_uv", "stage_wheels"]

HOW = "pip and uv install from the wheels (find-links, no index)"
PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


@cache
def host_python() -> str:
    """Return the version of the host's system Python, which images of the host system have."""
    return _version("/usr/bin/python3") or f"{sys.version_info[0]}.{sys.version_info[1]}"


def stage_wheels(
    store: AssetStore, requirements: Sequence[str], python: str, local: Path | None
) -> list[Asset]:
    """Stage wheels for requirements and their dependencies; build from source if needed."""
    with store.partial() as folder:
        files = _collect(folder, requirements, python, local)
        return [_put(store, file) for file in files]


def stage_uv(store: AssetStore, requirement: str, local: Path | None) -> list[Asset]:
    """Stage the uv wheel and the programs uv and uvx from it."""
    with store.partial() as folder:
        (wheel,) = _download(folder, ["--no-deps", requirement], host_python(), local)
        version = wheel.name.split("-")[1]
        programs = folder / "programs"
        programs.mkdir()
        try:
            _unpack(wheel, programs)
        except zipfile.BadZipFile:
            raise AssetError(f"{wheel.name} is damaged") from None
        if not (programs / "uv").exists():
            raise AssetError(f"{wheel.name} has no uv program")
        path = f"tools/uv-{version}"
        found = store.put(programs, path)
        how = "uv and uvx in PATH; uv's installer installs it"
        tool = Asset(Kind.UV_TOOL, "uv", version, found.digest, found.size, path, None, how)
        return [tool, _put(store, wheel)]


def _unpack(wheel: Path, programs: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if (base := name.rpartition("/")[2]) in ("uv", "uvx") and "/scripts/" in name:
                (programs / base).write_bytes(archive.read(name))
                (programs / base).chmod(0o755)


def _put(store: AssetStore, wheel: Path) -> Asset:
    path = f"wheels/{wheel.name}"
    name, version = wheel.name.split("-")[:2]
    found = store.put(wheel, path)
    return Asset(Kind.WHEELS, name, version, found.digest, found.size, path, None, HOW)


def _collect(
    folder: Path, requirements: Sequence[str], python: str, local: Path | None
) -> list[Path]:
    try:
        return _download(folder, requirements, python, local)
    except DiskFull:
        raise
    except AssetError as error:
        # A requirement has no wheel: build it with a Python of the same version.
        builder = _python_of_version(python)
        if builder is None:
            raise AssetError(f"{error} (no Python {python} here to build a wheel with)") from None
        try:
            return _pip(folder, [builder, "-m", "pip", "wheel", "-w"], requirements, local)
        except DiskFull:
            raise
        except AssetError as second:
            raise AssetError(str(second)) from None


def _download(
    folder: Path, requirements: Sequence[str], python: str, local: Path | None
) -> list[Path]:
    command = [python_with_pip(), "-m", "pip", "download", "--only-binary=:all:"]
    return _pip(folder, [*command, "--python-version", python, "-d"], requirements, local)


def _pip(
    folder: Path, command: Sequence[str], requirements: Sequence[str], local: Path | None
) -> list[Path]:
    target, temporary = folder / "wheels", folder / "tmp"
    shutil.rmtree(target, ignore_errors=True)
    temporary.mkdir(exist_ok=True)
    source = ["--no-index", "--find-links", str(local)] if local else []
    options = ["--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    run_command([*command, str(target), *options, *source, *requirements], cwd=folder,
        env={"TMPDIR": str(temporary)})  # fmt: skip
    return sorted(target.glob("*.whl"))


@cache
def python_with_pip() -> str:
    """Return a Python that has pip; the Python of this process may not."""
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        if _output_of([python, "-m", "pip", "--version"]) is not None:
            return python
    raise AssetError("no Python with pip on this host: run python3 -m ensurepip, or stage on a "
                     "host that has pip")  # fmt: skip


@cache
def _python_of_version(version: str) -> str | None:
    for python in (sys.executable, f"python{version}", "/usr/bin/python3", "python3"):
        if (
            _version(python) == version
            and _output_of([python, "-m", "pip", "--version"]) is not None
        ):
            return python
    return None


@cache
def _version(python: str) -> str | None:
    output = _output_of([python, "-c", PRINT_VERSION])
    return output.strip() if output and re.fullmatch(r"\d+\.\d+\s*", output) else None


def _output_of(argv: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


NPM_OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--no-save")


def stage_npm(
    store: AssetStore, packages: Sequence[str], *, old: Path | None, local: Path | None
) -> Asset:
    """Stage a cache with the packages, their dependencies and the contents of `old`."""
    with store.partial() as folder:
        cache, project = folder / "cache", folder / "project"
        if old is not None:
            shutil.copytree(old, cache, symlinks=True)
        if local is not None:
            shutil.copytree(local, cache, symlinks=True, dirs_exist_ok=True)
        project.mkdir()
        home = {"npm_config_cache": str(cache), "HOME": str(folder), "TMPDIR": str(folder)}
        offline = ("--offline",) if local is not None else ()
        run_command(["npm", "install", *NPM_OPTIONS, *offline, *packages], cwd=project, env=home)
        for package in packages:
            # npx needs the full metadata of a package, which an install does not fetch.
            exe = ["npm", "exec", "--yes", *NPM_OPTIONS, *offline, f"--package={package}"]
            run_command([*exe, "--", "node", "--version"], cwd=folder, env=home)
        for name in ("_logs", "_npx", "_cacache/tmp"):
            shutil.rmtree(cache / name, ignore_errors=True)
        named = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
        found = store.put(cache, path := f"npm/{named}")
    how = "npm and npx install from it (offline, from a copy of the cache)"
    return Asset(Kind.NPM, "npm", " ".join(packages), found.digest, found.size, path, None, how)
