"""Rules about task.toml, Dockerfiles, compose files and repositories."""

import subprocess

import pytest

from plimsoll.tasks.lint.linter import lint_task, lint_tasks
from plimsoll.tasks.loader import load_tasks


def test_unknown_keys_are_reported(rules):
    assert rules(toml="[verifier]\ntimout_sec = 3\n")["unknown-key"] == "error"
    assert rules(toml="[environment]\nzebra = 3\n")["unknown-key"] == "warning"
    assert "unknown-key" not in rules(toml="[metadata]\nzebra = 3\n")


def test_unenforced_limits_are_reported(rules, lint):
    assert rules(toml="[environment]\ngpus = 1\n")["unenforced-limit"] == "error"
    assert rules(toml="[environment]\nstorage_mb = 100\n")["unenforced-limit"] == "warning"
    assert rules(toml='[environment]\nstorage = "2G"\n')["unenforced-limit"] == "warning"
    assert "unenforced-limit" not in rules(toml="[environment]\ncpus = 1\nmemory_mb = 512\n")
    [finding] = lint(toml="[environment]\n\ngpus = 1\n")
    assert (finding.file, finding.line) == ("task.toml", 3)


def test_unsupported_keys_are_reported(rules, lint):
    server = '[[environment.mcp_servers]]\nname = "tools"\nurl = "http://localhost:1"\n'
    assert rules(toml=server)["not-given"] == "error"
    assert rules(toml='[environment]\nskills_dir = "/skills"\n')["not-given"] == "error"
    assert rules(toml='[environment]\ngpu_types = ["h100"]\n')["not-given"] == "warning"
    [finding] = lint(toml='[environment]\n\nskills_dir = "/skills"\n')
    assert (finding.file, finding.line) == ("task.toml", 3)


def test_a_separate_verifier_needs_artifacts(rules):
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    rule = "separate-verifier-without-artifacts"
    assert rules(toml=separate)[rule] == "error"
    assert rule not in rules(toml='artifacts = ["/app/a"]\n' + separate)
    assert rule not in rules(toml=separate + '[[verifier.collect]]\ncommand = "true"\n')
    assert rule not in rules(toml=separate, files={"instruction.md": "Write /logs/artifacts/a."})
    assert rule not in rules()


def test_a_wrong_name_of_the_compose_file_is_reported(rules):
    for name in ("docker-compose.yml", "compose.yaml"):
        assert rules(files={f"environment/{name}": "x"})["compose-file-name"] == "error"
    both = {"environment/docker-compose.yml": "x", "environment/docker-compose.yaml": "x"}
    assert "compose-file-name" not in rules(files=both)


def test_an_invalid_dockerfile_is_reported(lint, rules):
    [finding] = lint(dockerfile="FROM debian\nRUNN true\n")
    assert (finding.rule, finding.file, finding.line) == (
        "invalid-dockerfile",
        "environment/Dockerfile",
        2,
    )
    assert "invalid-dockerfile" not in rules(dockerfile=None)


@pytest.mark.parametrize(
    "run",
    [
        "git clone https://example.org/a /opt/a",
        "git clone --depth 1 https://example.org/a.git /opt/a",
        "git clone -b main https://example.org/a /opt/a",
        "cd /opt && git clone git@example.org:team/a.git && cd a && git checkout master",
    ],
)
def test_a_clone_without_a_revision_is_reported(rules, run):
    assert rules(dockerfile=f"FROM debian\nRUN {run}\n")["unpinned-clone"] == "warning"


@pytest.mark.parametrize(
    "run",
    [
        "git clone https://example.org/a /opt/a && git -C /opt/a checkout 0123abc",
        "git clone https://example.org/a /opt/a \\\n && cd /opt/a \\\n && git checkout 0123abc",
        "git clone --branch v1.2 --depth 1 https://example.org/a /opt/a",
        "git clone https://example.org/a /opt/a\nWORKDIR /opt/a\nRUN git reset --hard 0123abc",
        "git clone https://example.org/a /opt/a\nARG R=0123abc\nRUN cd /opt/a && git checkout $R",
        "echo git clone https://example.org/a",
        "git clone /src /opt/a",
    ],
)
def test_a_pinned_clone_is_not_reported(rules, run):
    assert "unpinned-clone" not in rules(dockerfile=f"FROM debian\nRUN {run}\n")


WORK = "FROM debian\nWORKDIR /app\nRUN git clone https://example.org/a . {}\n"


def test_a_clone_with_later_commits_is_reported(rules):
    assert rules(dockerfile=WORK.format("&& git checkout 0123abc"))["future-commits"] == "warning"
    for rest in (
        "&& git checkout 0123abc && rm -rf .git",
        "&& git checkout 0123abc && git reflog expire --all && git gc --prune=now",
        "--depth 1 --branch v1",
        "",
    ):
        assert "future-commits" not in rules(dockerfile=WORK.format(rest)), rest
    other = "git clone https://example.org/a /opt/a && git -C /opt/a checkout 0123abc"
    dockerfile = f"FROM debian\nRUN {other}\nWORKDIR /app\n"
    assert "future-commits" not in rules(dockerfile=dockerfile)


def git(folder, *args):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", folder, *identity, *args], check=True, capture_output=True)


def test_a_repository_with_commits_beyond_head_is_reported(make_task):
    task = make_task(files={"environment/repo/a": "1"})
    repo = task.path / "environment/repo"
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "one")
    assert lint_task(task) == ()
    git(repo, "commit", "-q", "--allow-empty", "-m", "the answer")
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    # No branch refers to it any more, but it can still be read.
    assert [finding.rule for finding in lint_task(task)] == ["future-commits"]
    git(repo, "reflog", "expire", "--expire=now", "--all")
    (repo / ".git/ORIG_HEAD").unlink()
    git(repo, "gc", "-q", "--prune=now")
    assert lint_task(task) == ()


def test_an_invalid_task_is_reported(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/task.toml").write_text('[agent]\ntimeout_sec = "x"\n')
    (tmp_path / "two").mkdir()
    (tmp_path / "two/task.toml").write_text("not toml\n")
    (tmp_path / "three").mkdir()
    (tmp_path / "three/task.toml").write_text("")
    loaded = load_tasks(tmp_path)
    found = [finding for one in lint_tasks(loaded) for finding in one.findings]
    assert [(f.task, f.rule, f.severity, f.file, f.line) for f in found] == [
        ("one", "invalid-task", "error", "task.toml", 2),
        ("three", "invalid-task", "error", "instruction.md", None),
        ("two", "invalid-task", "error", "task.toml", 1),
    ]


def test_a_clean_task_has_no_findings(lint):
    assert lint() == []
    assert lint(offline=True) == []
