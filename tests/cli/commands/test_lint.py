"""`plimsoll lint`: exit status, streams and output."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def lint(plimsoll):
    def run(*args):
        return plimsoll("lint", *map(str, args))

    return run


def test_sound_tasks_are_clean_and_exit_0(lint):
    done = lint(EXAMPLES / "tasks")
    assert (done.returncode, done.stderr) == (0, "")
    assert "clean: 25 tasks" in done.stdout


def test_errors_exit_1_with_location_reason_and_remedy(lint):
    done = lint(EXAMPLES / "broken", "--task", "curl-pipe-sh-then-zero")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("lint for local · 1 task")
    [first, *_] = [line for line in lines if "fetch-then-zero" in line]
    assert first.split()[:3] == ["tests/test.sh:2", "fetch-then-zero", "error"]
    # A rule is explained once for all its findings.
    assert sum(line.startswith("fetch-then-zero (2)") for line in lines) == 1
    assert sum(line.startswith("  why  ") for line in lines) == 3
    assert lines[-2].startswith("2 errors in 1 task · 2 warnings · 1 task in ")
    assert lines[-1].startswith("see: plimsoll stage ")
    assert not any(line != line.rstrip() for line in lines)


def test_warnings_alone_exit_0(lint):
    done = lint(EXAMPLES / "broken", "--task", "clone-fails-at-set-up")
    assert done.returncode == 0
    assert "unpinned-clone" in done.stdout
    assert lint(EXAMPLES / "broken", "--task", "clone-fails*", "--offline").returncode == 1


def test_json_is_one_object_and_nothing_else(lint):
    done = lint(EXAMPLES / "broken", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert (found["tasks"], found["backend"], found["offline"]) == (29, "local", False)
    assert found["errors"] + found["warnings"] == len(found["findings"])
    assert found["findings"][0].keys() == {
        "rule", "severity", "task", "file", "line", "message", "why", "fix",
    }  # fmt: skip


def test_sarif_is_written_to_a_file(lint, tmp_path):
    done = lint(EXAMPLES / "broken", "--sarif", tmp_path / "lint.sarif")
    assert done.returncode == 1
    assert json.loads((tmp_path / "lint.sarif").read_text())["version"] == "2.1.0"
    done = lint(EXAMPLES / "tasks", "--sarif", tmp_path / "no/lint.sarif")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("nowhere",),
        (EXAMPLES / "tasks", "--task", "nothing-*"),
        (EXAMPLES / "tasks", "--backend", "moon"),
        (EXAMPLES / "tasks", "--assets", "nowhere"),
        (),
    ],
)
def test_bad_usage_exits_2(lint, args):
    done = lint(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_invalid_task_is_a_finding_among_others(lint, tmp_path):
    for name in ("bad", "worse"):
        (tmp_path / "tasks" / name).mkdir(parents=True)
    (tmp_path / "tasks/bad/task.toml").write_text("x =\n")
    (tmp_path / "tasks/worse/task.toml").write_text("")
    done = lint(tmp_path / "tasks")
    assert done.returncode == 1
    assert done.stdout.count("invalid-task") == 3
    assert "task.toml:1  invalid-task  error" in done.stdout


def test_help_explains_the_exit_status(lint):
    text = lint("--help").stdout
    assert "no errors; there may be warnings" in text
