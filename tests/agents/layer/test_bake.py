"""Baking of agent layers: packages from local folders, installed by the real npm and pip."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from wheel_files import write_wheel

from parts import need
from plimsoll.agents.layer.bake import BakeResult, bake
from plimsoll.agents.layer.layer import Component, read_manifest
from plimsoll.core.errors import AssetError

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use only the packages of the test, and ignore the host's config of pip and npm."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")


def tarball(tmp_path: Path) -> str:
    """An npm package with a script that must not run."""
    if shutil.which("npm") is None:
        need("npm", "npm is not installed")
    source = tmp_path / "source"
    source.mkdir()
    marks = f"touch {tmp_path}/ran"
    about = {"name": "tool", "version": "1.0.0", "scripts": {"postinstall": marks}}
    (source / "package.json").write_text(json.dumps(about))
    (source / "tool.js").write_text("console.log('tool')\n")
    subprocess.run(
        ["npm", "pack", "--silent", "--pack-destination", str(tmp_path)],
        cwd=source,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return str(tmp_path / "tool-1.0.0.tgz")


PIP = Component("tool", "1.0", "pip", ("tool=={version}",), for_python=True)


def baked(tmp_path: Path, *parts: Component) -> BakeResult:
    return bake(tmp_path / "layer", parts, PYTHON, lambda _: None)


def test_a_component_is_installed_once(tmp_path: Path):
    write_wheel(tmp_path / "wheels", "1.0")
    first = baked(tmp_path, PIP)
    assert (first.made, first.kept) == (("tool",), ())
    assert "1.0" in (tmp_path / "layer/tool/tool.py").read_text()
    second = baked(tmp_path, PIP)
    assert (second.made, second.kept) == ((), ("tool",))
    assert second.parts == first.parts == read_manifest(tmp_path / "layer")
    assert first.parts["tool"].python == PYTHON


def test_changed_and_damaged_components_are_installed_again_and_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    installed: list[str] = []

    def install(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        """Stands in for pip, which takes seconds."""
        del env
        (package,) = (word for word in command if "==" in word)
        installed.append(package)
        (cwd / package.partition("==")[0] / "main.py").write_text(package)

    monkeypatch.setattr("plimsoll.agents.layer.bake.run_command", install)
    other = Component("other", "1.0", "pip", ("other=={version}",), for_python=True)
    file = tmp_path / "layer/tool/main.py"
    baked(tmp_path, PIP, other)
    assert baked(tmp_path, PIP, other).kept == ("tool", "other")
    assert installed == ["tool==1.0", "other==1.0"]
    new = PIP.with_version("2.0")
    assert baked(tmp_path, new, other).made == ("tool",)
    assert file.read_text() == "tool==2.0"
    file.write_text("")
    assert baked(tmp_path, new, other).made == ("tool",)
    assert file.read_text() == "tool==2.0"
    shutil.rmtree(tmp_path / "layer/tool")
    assert baked(tmp_path, new, other).made == ("tool",)
    # Compiled packages are for one version of Python.
    again = bake(tmp_path / "layer", (new, other), "3.99", lambda _: None)
    assert again.made == ("tool", "other")
    assert len(installed) == 7


@pytest.mark.slow
def test_another_version_replaces_the_first(tmp_path: Path):
    write_wheel(tmp_path / "wheels", "1.0")
    write_wheel(tmp_path / "wheels", "2.0")
    old = baked(tmp_path, PIP).parts["tool"]
    new = baked(tmp_path, PIP.with_version("2.0")).parts["tool"]
    assert new.version == "2.0"
    assert new.digest != old.digest
    assert "2.0" in (tmp_path / "layer/tool/tool.py").read_text()


@pytest.mark.slow
def test_a_damaged_component_is_installed_again(tmp_path: Path):
    write_wheel(tmp_path / "wheels", "1.0")
    baked(tmp_path, PIP)
    (tmp_path / "layer/tool/tool.py").write_text("")
    assert baked(tmp_path, PIP).made == ("tool",)
    assert "1.0" in (tmp_path / "layer/tool/tool.py").read_text()


def test_a_failed_installation_is_reported_and_baked_components_stay(tmp_path: Path):
    write_wheel(tmp_path / "wheels", "1.0")
    baked(tmp_path, PIP)
    absent = Component("absent", "9.9", "pip", ("absent=={version}",))
    with pytest.raises(AssetError, match=r"absent 9\.9 could not be installed: .*absent==9\.9"):
        baked(tmp_path, PIP, absent)
    assert list(read_manifest(tmp_path / "layer")) == ["tool"]
    assert not (tmp_path / "layer/absent").exists()
    assert not list((tmp_path / "layer").glob(".partial-*"))


def test_an_npm_package_is_installed_without_running_its_scripts(tmp_path: Path):
    component = Component("tool", "1.0.0", "npm", (tarball(tmp_path),))
    baked(tmp_path, component)
    assert (tmp_path / "layer/tool/node_modules/tool/tool.js").exists()
    assert not (tmp_path / "ran").exists()
    assert baked(tmp_path, component).kept == ("tool",)


def test_an_unreachable_registry_is_named(tmp_path: Path):
    if shutil.which("npm") is None:
        need("npm", "npm is not installed")
    component = Component("absent", "9.9", "npm", ("absent@{version}",))
    with pytest.raises(AssetError, match=r"could not be installed(.|\n)*the registry of npm"):
        baked(tmp_path, component)
