"""Staged wheels, uv and npm packages, from local folders and from the configured index."""

import shutil
import subprocess
import sys
import zipfile

import pytest

from parts import need
from plimsoll.tasks.assets.asset import Request
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.packages import host_python
from plimsoll.tasks.assets.plan import Plan
from plimsoll.tasks.fetches.fetch import Kind


def make_wheel(folder, name, version, needs=(), code="VALUE = 1\n"):
    """Write a minimal wheel."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    meta += "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": meta,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
        archive.writestr(f"{info}/RECORD", record)


def wheels(*what):
    return Request(Kind.WHEELS, what, python=host_python())


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """The reason why the configured index cannot be used; None if it can."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "0"]
    target = str(tmp_path_factory.mktemp("index"))
    done = subprocess.run(
        [*command, "--timeout", "15", "-d", target, "iniconfig"], capture_output=True, text=True
    )
    return None if done.returncode == 0 else "no package index can be reached"


def test_wheels_are_staged_with_their_dependencies(tmp_path, stage, folder):
    make_wheel(tmp_path / "w", "plimalpha", "1.0", ["plimbeta>=2"])
    make_wheel(tmp_path / "w", "plimbeta", "2.5")

    outcome = stage(wheels("plimalpha==1.0"), sources=LocalSources(wheels=tmp_path / "w"))

    assert outcome.complete, outcome.failures
    assert [(a.source, a.pin) for a in outcome.assets.assets] == [
        ("plimalpha", "1.0"),
        ("plimbeta", "2.5"),
    ]
    assert all((folder / asset.path).is_file() for asset in outcome.assets.assets)


def test_an_unavailable_requirement_is_reported(tmp_path, stage):
    make_wheel(tmp_path / "w", "plimalpha", "1.0")

    outcome = stage(
        wheels("plimalpha==3"), wheels("plimalpha"), sources=LocalSources(wheels=tmp_path / "w")
    )

    (failure,) = outcome.failures
    assert failure.request.what == ("plimalpha==3",)
    assert "plimalpha" in failure.reason
    assert len(outcome.assets.assets) == 1


def test_an_unavailable_optional_request_is_not_a_failure(tmp_path, stage):
    make_wheel(tmp_path / "w", "plimalpha", "1.0")
    plan = Plan()
    plan.add(wheels("plimalpha"))
    plan.add(wheels("setuptools", "wheel"), optional=True)

    outcome = stage(plan=plan, sources=LocalSources(wheels=tmp_path / "w"))

    assert outcome.complete
    assert [asset.source for asset in outcome.assets.assets] == ["plimalpha"]


async def test_pip_installs_from_the_wheels_without_a_network(tmp_path, stage, offline):
    make_wheel(tmp_path / "w", "plimalpha", "1.0", ["plimbeta"])
    make_wheel(tmp_path / "w", "plimbeta", "2.5", code="VALUE = 25\n")
    stage(wheels("plimalpha"), sources=LocalSources(wheels=tmp_path / "w"))
    sandbox = await offline()

    if not (await sandbox.exec("/usr/bin/python3 -m pip --version")).ok:
        need("pip", "the host's Python has no pip")
    done = await sandbox.exec(
        "/usr/bin/python3 -m pip install --target /srv/site plimalpha && "
        "PYTHONPATH=/srv/site /usr/bin/python3 -c 'import plimbeta; print(plimbeta.VALUE)'",
        timeout=60,
    )

    assert done.ok, done.stderr.text
    assert done.stdout.text.endswith("25\n")


@pytest.mark.slow
async def test_uvx_pytest_works_without_a_network(index, stage, offline):
    need("index", index)
    installer = Request(Kind.UV_TOOL, ("https://example.invalid/uv/install.sh",))
    outcome = stage(installer, wheels("pytest"))
    assert outcome.complete, outcome.failures
    sandbox = await offline()

    await sandbox.exec("mkdir /srv/t && echo 'def test(): pass' > /srv/t/test_a.py")
    done = await sandbox.exec("uvx pytest -q /srv/t", timeout=90)
    assert done.ok, done.stderr.text
    assert "1 passed" in done.stdout.text
    done = await sandbox.exec(
        "curl -LsSf https://example.invalid/uv/install.sh | sh && source $HOME/.local/bin/env && "
        "command -v uvx && uvx pytest --version",
        timeout=90,
    )
    assert done.ok, done.stderr.text
    assert done.stdout.text.startswith("/root/.local/bin/uvx\npytest ")
    missing = await sandbox.exec("uvx no-such-package-here", timeout=60)
    assert not missing.ok


@pytest.fixture(scope="session")
def npm() -> str | None:
    """The reason why npm packages cannot be installed; None if they can."""
    if shutil.which("npm") is None:
        return "npm is not installed"
    view = ["npm", "view", "is-odd@3.0.1", "version", "--fetch-retries=0"]
    done = subprocess.run(view, capture_output=True, text=True, timeout=60)
    return None if done.returncode == 0 else "no npm registry can be reached"


@pytest.mark.slow
async def test_npm_and_npx_install_without_a_network(npm, stage, offline, folder):
    need("npm", npm)
    outcome = stage(Request(Kind.NPM, ("is-odd@3.0.1",)))
    assert outcome.complete, outcome.failures
    more = stage(Request(Kind.NPM, ("semver@7.6.3",)))
    assert more.complete, more.failures
    assert len(list((folder / "npm").iterdir())) == 1
    sandbox = await offline()

    done = await sandbox.exec(
        "mkdir /srv/p && cd /srv/p && npm install is-odd@3.0.1 && node -p \"require('is-odd')(3)\"",
        timeout=60,
    )
    assert done.ok, done.stderr.text
    assert done.stdout.text.endswith("true\n")
    done = await sandbox.exec("cd /srv && npx --yes semver@7.6.3 1.2.3", timeout=60)
    assert done.ok, done.stderr.text
    assert done.stdout.text == "1.2.3\n"
    missing = await sandbox.exec("cd /srv/p && npm install left-pad", timeout=60)
    assert not missing.ok
