"""Makes a layer: installs the parts of agents with this host's npm and pip.

A part is made under another name and comes to its own with one rename; the manifest follows.
Started again, it installs only what is missing, damaged or of another version.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.agents.layer.components import Component
from plimsoll.agents.layer.layer import BakedComponent, read_manifest, write_manifest
from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.commands import DiskFull, run_command
from plimsoll.tasks.assets.packages import python_with_pip
from plimsoll.tasks.assets.store import AssetStore, measure

__all__ = ["BakeResult", "bake"]


@dataclass(frozen=True, slots=True)
class BakeResult:
    """What became of a layer."""

    parts: dict[str, BakedComponent]
    made: tuple[str, ...]
    kept: tuple[str, ...]


def bake(
    folder: Path, parts: Iterable[Component], python: str, say: Callable[[str], None]
) -> BakeResult:
    """Have the parts in the folder. `python` is the version of those that fit one only."""
    made: list[str] = []
    kept: list[str] = []
    with AssetStore.locked(folder) as store:
        found = read_manifest(folder)
        for part in parts:
            fits = python if part.for_python else ""
            old = found.get(part.name)
            if old is not None and _stands(folder, part, old, fits):
                kept.append(part.name)
                continue
            say(f"{part.name} {part.version} by {part.source}")
            found[part.name] = _install(store, part, fits)
            write_manifest(folder, found)
            made.append(part.name)
    return BakeResult(found, tuple(made), tuple(kept))


def _stands(folder: Path, part: Component, old: BakedComponent, python: str) -> bool:
    """Whether what lies there is what is wanted, and undamaged."""
    if (old.version, old.packages, old.python) != (part.version, part.wanted(), python):
        return False
    try:
        return measure(folder / part.name).digest == old.digest
    except OSError:
        return False


def _install(store: AssetStore, part: Component, python: str) -> BakedComponent:
    with store.partial() as temporary:
        target = temporary / part.name
        target.mkdir()
        command = part.install(str(target), [python_with_pip()] if part.source == "pip" else [])
        if python:
            command += ["--python-version", python]
        home = {"npm_config_cache": str(temporary / "npm"), "TMPDIR": str(temporary)}
        try:
            run_command(command, cwd=temporary, env=home)
        except DiskFull:
            raise
        except AssetError as error:
            raise AssetError(_advice(part, command, str(error))) from None
        found = store.put(target, part.name)
    return BakedComponent(part.version, part.wanted(), found.digest, found.size, python)


def _advice(part: Component, command: Sequence[str], said: str) -> str:
    return (
        f"{part.name} {part.version} could not be installed: {said}\n"
        f"does this host reach the registry of {part.source}? is there such a version? what was "
        f"baked before stands; the command was: {command[0]} … {' '.join(part.wanted())}"
    )
