"""Bakes an agent layer: installs the components of agents with this host's npm and pip.

Each component is installed under a temporary name and renamed; the manifest follows. A second bake
installs only missing, damaged and outdated components.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.agents.layer.layer import BakedComponent, Component, read_manifest, write_manifest
from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.commands import DiskFull, run_command
from plimsoll.tasks.assets.packages import python_with_pip
from plimsoll.tasks.assets.store import AssetStore, measure

__all__ = ["BakeResult", "bake"]


@dataclass(frozen=True, slots=True)
class BakeResult:
    """The object that `--json` prints.

    All components of the layer, and the names of the newly installed and of the unchanged ones.
    """

    parts: dict[str, BakedComponent]
    made: tuple[str, ...]
    kept: tuple[str, ...]


def bake(
    folder: Path, components: Iterable[Component], python: str, say: Callable[[str], None]
) -> BakeResult:
    """Install components into a folder. `python` is the version for those that need one."""
    made: list[str] = []
    kept: list[str] = []
    with AssetStore.locked(folder) as store:
        found = read_manifest(folder)
        for component in components:
            python_version = python if component.for_python else ""
            old = found.get(component.name)
            if old is not None and _is_current(folder, component, old, python_version):
                kept.append(component.name)
                continue
            say(f"{component.name} {component.version} by {component.source}")
            found[component.name] = _install(store, component, python_version)
            write_manifest(folder, found)
            made.append(component.name)
    return BakeResult(found, tuple(made), tuple(kept))


def _is_current(folder: Path, component: Component, old: BakedComponent, python: str) -> bool:
    """Whether the installed component is the requested one, and undamaged."""
    if (old.version, old.packages, old.python) != (
        component.version,
        component.package_specs(),
        python,
    ):
        return False
    try:
        return measure(folder / component.name).digest == old.digest
    except OSError:
        return False


def _install(store: AssetStore, component: Component, python: str) -> BakedComponent:
    with store.partial() as temporary:
        target = temporary / component.name
        target.mkdir()
        command = component.install_command(
            str(target), [python_with_pip()] if component.source == "pip" else []
        )
        if python:
            command += ["--python-version", python]
        home = {"npm_config_cache": str(temporary / "npm"), "TMPDIR": str(temporary)}
        try:
            run_command(command, cwd=temporary, env=home)
        except DiskFull:
            raise
        except AssetError as error:
            raise AssetError(_advice(component, command, str(error))) from None
        found = store.put(target, component.name)
    return BakedComponent(
        component.version, component.package_specs(), found.digest, found.size, python
    )


def _advice(component: Component, command: Sequence[str], problem: str) -> str:
    return (
        f"{component.name} {component.version} could not be installed: {problem}\n"
        f"Check that this host reaches the registry of {component.source}, and that the version "
        "exists. "
        "Components baked before are unchanged. The command was: "
        f"{command[0]} … {' '.join(component.package_specs())}"
    )
