"""`plimsoll ps`: items, their owners, and unreachable backends."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from sandbox_owner import SandboxOwner, running_owner

Plimsoll = Callable[..., CompletedProcess[str]]


@pytest.fixture
def config(tmp_path: Path, sandboxes: None) -> Path:
    """A separate home, and the address of a Docker daemon that does not exist."""
    (tmp_path / "plimsoll.toml").write_text(
        f'[local]\nhome = "{tmp_path}/home"\n[docker]\nhost = "tcp://127.0.0.1:1"\n'
    )
    return tmp_path / "home"


@pytest.fixture
def run(config: Path) -> Iterator[SandboxOwner]:
    with running_owner(config, "night-run", 2) as found:
        yield found


def test_without_sandboxes_ps_says_so(plimsoll: Plimsoll, config: Path):
    ended = plimsoll("ps", "--backend", "local")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "no resources of runs on local\n"


def test_each_sandbox_is_a_line_with_its_run_and_its_owner(plimsoll: Plimsoll, run: SandboxOwner):
    ended = plimsoll("ps", "--backend", "local")
    assert ended.returncode == 0
    head, *lines, total = ended.stdout.splitlines()
    assert head.split() == [
        "run",
        "ticket",
        "backend",
        "kind",
        "id",
        "state",
        "age",
        "owner",
        "expires",
    ]
    host = os.uname().nodename
    for number, (line, name) in enumerate(zip(lines, run.ids, strict=True), 1):
        words = ["night-run", f"task.{number}", "local", "sandbox", name, "running"]
        assert line.split()[:6] == words
        assert f"pid {run.process.pid} on {host} " in line
        assert line.rstrip().endswith("in 59 min")
    assert total == "1 run · 2 sandboxes"


def test_leftovers_are_marked_with_the_command_that_removes_them(
    plimsoll: Plimsoll, run: SandboxOwner
):
    run.kill()
    said = plimsoll("ps", "--backend", "local").stdout
    assert said.count(f"pid {run.process.pid} on {os.uname().nodename}, dead") == 2
    assert "2 of dead owners or expired: `plimsoll clean --expired` removes them" in said


def test_json_is_one_object_with_everything(plimsoll: Plimsoll, run: SandboxOwner):
    ended = plimsoll("ps", "--backend", "local", "--json")
    report = json.loads(ended.stdout)
    assert report["unreached"] == {}
    assert [item["id"] for item in report["items"]] == sorted(run.ids)
    one = report["items"][0]
    assert (one["backend"], one["kind"], one["state"]) == ("local", "sandbox", "running")
    assert one["run"] == "night-run"
    assert one["owner"]["pid"] == run.process.pid
    assert one["owner"]["alive"] is True
    assert one["expires"] > time.time()


def test_an_unreachable_backend_is_one_line_of_the_list(plimsoll: Plimsoll, run: SandboxOwner):
    ended = plimsoll("ps")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1 run · 2 sandboxes" in ended.stdout
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("docker was not reached: the Docker daemon at tcp://127.0.0.1:1 cannot")
    report = json.loads(plimsoll("ps", "--json").stdout)
    assert list(report["unreached"]) == ["docker"]


def test_a_backend_that_was_named_must_answer(plimsoll: Plimsoll, config: Path):
    ended = plimsoll("ps", "--backend", "docker")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("plimsoll: the Docker daemon at tcp://127.0.0.1:1 cannot")


def test_an_unknown_backend_is_bad_usage(plimsoll: Plimsoll, config: Path):
    ended = plimsoll("ps", "--backend", "moon")
    assert ended.returncode == 2
    assert ended.stderr == "plimsoll: no backend is called 'moon': choose all, local, docker\n"
