"""The wheel: the quick start works in an empty environment, without the repository."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from parts import need

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

pytestmark = pytest.mark.slow


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


def test_the_wheel_has_types_programs_and_the_license(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert "plimsoll/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    here = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("init/bin/*")}
    assert here
    assert here <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "examples/"))]


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
