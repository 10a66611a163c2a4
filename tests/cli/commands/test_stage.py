"""`plimsoll stage` with local copies of assets."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Plimsoll = Callable[..., CompletedProcess[str]]

CLONE = "git clone https://example.invalid/org/parsers.git /opt/parsers"
FETCH = "curl -fsSL https://example.invalid/data.txt -o /tmp/data.txt"


@pytest.fixture
def tasks(tmp_path: Path, write_task: Callable[..., Path]) -> Path:
    """Two tasks that clone the same repository. One of them also fetches a file."""
    for name, test in (("one", "true"), ("two", FETCH)):
        folder = write_task(name, test=f"#!/bin/bash\n{test}\n")
        dockerfile = f"FROM scratch-host\nRUN {CLONE}\nRUN apt-get install -y gcc\n"
        (folder / "environment/Dockerfile").write_text(dockerfile)
    return tmp_path / "tasks"


@pytest.fixture
def local_copies(tmp_path: Path) -> list[str]:
    """Options with local copies of the repository and the file that the tasks fetch."""
    repo = tmp_path / "repo"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-C", str(repo)]
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    (repo / "parser.py").write_text("ANSWER = 1\n")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    (tmp_path / "data.txt").write_text("data\n")
    pairs = (f"git:https://example.invalid/org/parsers={repo}",
             f"url:https://example.invalid/data.txt={tmp_path}/data.txt")  # fmt: skip
    return [word for pair in pairs for word in ("--from", pair)]


def test_assets_are_staged_once_and_listed(
    plimsoll: Plimsoll, tasks: Path, local_copies: list[str], tmp_path: Path
) -> None:
    done = plimsoll("stage", "tasks", "--to", "assets", *local_copies)

    assert done.returncode == 0, done.stderr
    assert "2 tasks: 2 assets can be staged" in done.stderr
    assert done.stderr.count("staging ") == 2
    assert "/opt/parsers" in done.stdout
    assert (
        "apt-get gcc: apt-get cannot be staged; install it in the image (one, two)" in done.stdout
    )
    assert "agents can read: url https://example.invalid/data.txt" in done.stdout
    assert (tmp_path / "assets/assets.toml").is_file()

    again = plimsoll("stage", "tasks", "--to", "assets")
    assert again.returncode == 0
    assert "nothing to do" in again.stdout


def test_a_missing_asset_is_named_with_its_tasks_and_the_others_are_staged(
    plimsoll: Plimsoll, tasks: Path, local_copies: list[str]
) -> None:
    done = plimsoll("stage", "tasks", "--to", "assets", *local_copies[:2], "--json")

    assert done.returncode == 1
    found = json.loads(done.stdout)
    (failed,) = found["failed"]
    assert failed["what"] == "url https://example.invalid/data.txt"
    assert failed["tasks"] == ["two"]
    assert failed["reason"]
    assert {asset["kind"] for asset in found["assets"]} == {"git"}
    assert found["left"][0]["tasks"] == ["one", "two"]
    text = plimsoll("stage", "tasks", "--to", "assets")
    assert text.returncode == 1
    assert "failed: url https://example.invalid/data.txt" in text.stdout
    assert "--from" in text.stdout


def test_only_the_assets_of_selected_tasks_are_staged(
    plimsoll: Plimsoll, tasks: Path, local_copies: list[str]
) -> None:
    done = plimsoll("stage", "tasks", "--to", "assets", "--task", "one", *local_copies[:2])

    assert done.returncode == 0
    assert "1 task: 1 asset can be staged" in done.stderr


def test_check_names_damaged_assets_and_changes_nothing(
    plimsoll: Plimsoll, tasks: Path, local_copies: list[str], tmp_path: Path
) -> None:
    plimsoll("stage", "tasks", "--to", "assets", *local_copies)
    assert plimsoll("stage", "tasks", "--to", "assets", "--check").returncode == 0
    (damaged,) = (tmp_path / "assets/files").iterdir()
    damaged.write_text("else")

    done = plimsoll("stage", "tasks", "--to", "assets", "--check")
    as_json = plimsoll("stage", "tasks", "--to", "assets", "--check", "--json")

    assert done.returncode == as_json.returncode == 1
    assert f"files/{damaged.name}: damaged" in done.stdout
    assert list(json.loads(as_json.stdout)["damaged"]) == [f"files/{damaged.name}"]
    assert damaged.read_text() == "else"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--from", "git:https://example.invalid/r=/no/such"), "/no/such"),
        (("--from", "apples=/tmp"), "expected git:URL=PATH"),
        (("--from", "url:https://example.invalid/f=/tmp"), "is a folder"),
        (("--check",), "assets.toml: missing"),
    ],
)
def test_bad_usage_is_one_line_with_a_remedy(
    plimsoll: Plimsoll, tasks: Path, args: tuple[str, ...], words: str
) -> None:
    done = plimsoll("stage", "tasks", "--to", "assets", *args)

    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_stager_is_refused_with_the_holder_of_the_folder(
    plimsoll: Plimsoll, start: Callable[..., subprocess.Popen[str]], tasks: Path, tmp_path: Path
) -> None:
    hold = (
        "import sys, time; from pathlib import Path\n"
        "from plimsoll.tasks.assets.store import AssetStore\n"
        "with AssetStore.locked(Path('assets')): print('held', flush=True); time.sleep(60)\n"
    )
    holder = start(python=("-c", hold))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    done = plimsoll("stage", "tasks", "--to", "assets")

    assert done.returncode == 2
    assert f"is being staged by pid {holder.pid} on " in done.stderr
    holder.kill()
    holder.wait()
    begun = time.monotonic()
    assert plimsoll("stage", "tasks", "--to", "assets", "--task", "one").returncode == 1
    assert time.monotonic() - begun < 30
