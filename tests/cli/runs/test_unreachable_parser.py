"""A grader that clones its parser from an unreachable host.

Such a task can give 0.0 to every trial for days. Lint names it, eval voids it, validate quarantines
it, and `eval --validated` refuses to start. With the repository staged it works.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Plimsoll = Callable[..., CompletedProcess[str]]

URL = "https://example.invalid/swe/rebench-v2.git"
STRICT = f"RUN git clone {URL} /opt/rebench-v2\n"
LENIENT = f"RUN git clone {URL} /opt/rebench-v2 || echo 'warning: could not clone'\n"
SKIPPING = f"RUN [ -d /opt/rebench-v2/.git ] || git clone {URL} /opt/rebench-v2 || true\n"

GRADER = """\
import pathlib
import sys

sys.path.insert(0, "/opt/rebench-v2/lib")
from agent.log_parsers import parse

print("SWE-rebench-V2 results starts here")
log = pathlib.Path("/app/log.txt")
good = log.exists() and parse(log.read_text())
open("/logs/verifier/reward.txt", "w").write("1" if good else "0")
"""
TEST = """\
#!/bin/bash
python3 /tests/grade.py
if [ $? -ne 0 ]; then
    echo "parsers not found"
    echo 0 > /logs/verifier/reward.txt
fi
"""


@pytest.fixture
def task(tmp_path: Path) -> Callable[[str], Path]:
    def write(clone: str) -> Path:
        files = {
            "task.toml": '[environment]\nnetwork_mode = "no-network"\n',
            "instruction.md": "Write the word passed to /app/log.txt.\n",
            "environment/Dockerfile": f"FROM debian:bookworm-slim\n{clone}WORKDIR /app\n",
            "tests/test.sh": TEST,
            "tests/grade.py": GRADER,
            "solution/solve.sh": "#!/bin/bash\necho passed > /app/log.txt\n",
        }
        folder = tmp_path / "tasks/seed"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder.parent

    return write


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A local copy of the repository that the task clones."""
    folder = tmp_path / "mirror"
    package = folder / "lib/agent"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "log_parsers.py").write_text("def parse(text):\n    return 'passed' in text\n")
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "parsers"]):
        subprocess.run([*git, *words], check=True)
    return folder


def result(ended: CompletedProcess[str]) -> dict[str, object]:
    return json.loads(ended.stdout)["results"][0]


@pytest.mark.parametrize(
    ("clone", "cause", "named"),
    [
        pytest.param(STRICT, "sandbox", "rebench-v2", id="strict", marks=pytest.mark.slow),
        pytest.param(LENIENT, "grader", "agent", id="lenient"),
        pytest.param(SKIPPING, "grader", "agent", id="skipping", marks=pytest.mark.slow),
    ],
)
def test_without_the_repository_the_trial_is_void(
    task: Callable[[str], Path],
    plimsoll: Plimsoll,
    sandboxes: None,
    clone: str,
    cause: str,
    named: str,
):
    tasks = str(task(clone))
    linted = plimsoll("lint", tasks, "--offline", "--json")
    assert linted.returncode == 1, linted.stdout
    assert "rebench-v2" in linted.stdout

    evaluated = plimsoll("eval", tasks, "--json")
    assert evaluated.returncode == 3
    row = result(evaluated)
    assert (row["verdict"], row["reward"], row["cause"]) == ("void", None, cause)
    assert named in str(row["reason"])

    validated = plimsoll("validate", tasks)
    assert validated.returncode == 1
    assert "seed" in validated.stdout

    refused = plimsoll("eval", tasks, "--validated")
    assert refused.returncode == 2
    assert "seed" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "clone"),
    [
        pytest.param("local", STRICT, id="local-strict"),
        pytest.param("local", LENIENT, id="local-lenient"),
        pytest.param("local", SKIPPING, id="local-skipping"),
        pytest.param("docker", STRICT, id="docker-strict"),
        pytest.param("docker-tls", SKIPPING, id="docker-tls-skipping"),
    ],
    indirect=["where"],
)
def test_with_the_staged_repository_the_trial_is_graded(
    task: Callable[[str], Path],
    mirror: Path,
    plimsoll: Plimsoll,
    where: tuple[str, ...],
    tmp_path: Path,
    clone: str,
):
    tasks = str(task(clone))
    staged = plimsoll("stage", tasks, "--to", "assets", "--from", f"git:{URL}={mirror}")
    assert staged.returncode == 0, staged.stderr
    assert plimsoll("stage", tasks, "--to", "assets", "--check").returncode == 0
    linted = plimsoll("lint", tasks, "--offline", "--assets", "assets")
    assert linted.returncode == 0, linted.stdout

    there = (tasks, *where, "--assets", "assets")
    evaluated = plimsoll("eval", *there, "--out", "out", "--json")
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    assert result(evaluated)["reward"] == 1.0
    said = (tmp_path / "out/trials/seed.1/verifier/stdout.txt").read_text()
    assert "results starts here" in said
    assert plimsoll("validate", *there).returncode == 0
    assert plimsoll("eval", *there, "--validated").returncode == 0
    # A validation with assets does not hold without them.
    assert plimsoll("eval", tasks, *where, "--validated").returncode == 2
