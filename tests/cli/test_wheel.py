"""The package needs its core dependencies only, and its wheel has all files that it needs."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from parts import need

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

REFUSE_OTHERS = """
import sys

allowed = {{*sys.stdlib_module_names, "plimsoll", *{allowed!r}}}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and not name.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"the core dependencies have no {{name}}", name=name)

sys.meta_path.insert(0, Refuse())
from plimsoll.cli.main import main
main({words!r})
"""
"""Runs a command in a Python that imports only some packages."""


def core_modules() -> set[str]:
    """The top-level modules of the core dependencies, and of their dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending, seen, modules = list(project["dependencies"]), set[str](), set[str]()
    while pending:
        required = Requirement(pending.pop())
        if required.name in seen or not (required.marker is None or required.marker.evaluate()):
            continue
        seen.add(required.name)
        found = distribution(required.name)
        pending += found.requires or []
        modules |= {file.parts[0].split(".")[0] for file in found.files or ()}
    return modules


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--help"], "eval"),
        (["lint", "tasks"], "1 task"),
        (["eval", "tasks", "--agent", "oracle", "--json"], '"reward":1.0'),
    ],
)
def test_core_dependencies_are_the_only_imports_of_the_quick_start(
    sandboxes: None, home: Path, tmp_path: Path, words: list[str], printed: str
):
    shutil.copytree(ROOT / "examples/tasks/off-by-one", tmp_path / "tasks/off-by-one")
    (tmp_path / "plimsoll.toml").write_text(f"[local]\nhome = {json.dumps(str(home))}\n")
    if words[0] == "eval":
        words = [*words, "--config", "plimsoll.toml"]
    script = REFUSE_OTHERS.format(allowed=sorted(core_modules()), words=words)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    assert printed in ended.stdout


def test_packages_of_extras_are_not_core_dependencies():
    modules = core_modules()
    assert {"click", "aiohttp", "msgspec", "zmq", "pydantic_core", "yarl"} <= modules
    assert {
        "torch",
        "transformers",
        "numpy",
        "yaml",
        "aiodocker",
        "ray",
        "jinja2",
    } & modules == set()


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without the environment variables that configure Python."""
    environment = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    return subprocess.run(
        words,
        cwd=folder,
        env=environment | {"NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def pip(*words: str | Path, folder: Path) -> None:
    quiet = ("--disable-pip-version-check", "--quiet")
    ended = run(sys.executable, "-m", "pip", *quiet, *words, folder=folder)
    if "No matching distribution found" in ended.stderr:
        need("index", f"pip finds no packages: {ended.stderr.strip().splitlines()[-1]}")
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    (made,) = folder.glob("plimsoll_rl-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The programs of an environment with only the wheel and its core dependencies."""
    environment = wheel.parent / "environment"
    venv.create(environment, symlinks=True)
    target = ("--python", environment / "bin/python")
    pip(*target, "install", "-c", CONSTRAINTS, wheel, folder=wheel.parent)
    return environment / "bin"


def test_the_package_has_its_types_and_the_built_init_of_each_machine_type():
    """The wheel is made of the files of `src/plimsoll`."""
    package = ROOT / "src/plimsoll"
    assert (package / "py.typed").is_file()
    built = {path.name for path in (package / "sandboxes/container/init/bin").iterdir()}
    assert {"plimsoll-init-aarch64", "plimsoll-init-x86_64"} <= built
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    assert settings["build"]["targets"]["wheel"] == {"packages": ["src/plimsoll"]}


@pytest.mark.slow
def test_the_wheel_has_types_programs_and_the_license(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert "plimsoll/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    here = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("init/bin/*")}
    assert here
    assert here <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "examples/"))]


@pytest.mark.slow
def test_core_dependencies_are_enough_for_the_quick_start(
    installed: Path, sandboxes: None, tmp_path: Path
):
    heavy = run(installed / "python", "-c", "import torch", folder=tmp_path)
    assert "ModuleNotFoundError" in heavy.stderr

    shown = run(installed / "plimsoll", "--help", folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "eval" in shown.stdout

    shutil.copytree(ROOT / "examples/tasks/off-by-one", tmp_path / "tasks/off-by-one")
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        words = ("eval", "tasks", "--agent", agent, "--out", f"runs/{agent}", "--json")
        ended = run(installed / "plimsoll", *words, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        (result,) = json.loads(ended.stdout)["results"]
        assert (result["verdict"], result["reward"]) == ("graded", reward)

    linted = run(installed / "plimsoll", "lint", "tasks", folder=tmp_path)
    assert linted.returncode == 0, linted.stdout + linted.stderr
