from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll.tasks.lint.linter import lint_task
from plimsoll.tasks.lint.parsed_task import LintSettings
from plimsoll.tasks.lint.rule import Finding
from plimsoll.tasks.loader import load_task
from plimsoll.tasks.task import Task

NO_NETWORK = '[environment]\nnetwork_mode = "no-network"\n'
PASSING = "#!/bin/bash\nif grep -qx hello /app/a; then\n    echo 1 >/logs/verifier/reward.txt\n"
PASSING += "else\n    echo 0 >/logs/verifier/reward.txt\nfi\n"

MakeTask = Callable[..., Task]
Lint = Callable[..., list[Finding]]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Write a task folder: a test script, a Dockerfile, task.toml and any other files."""

    def make(
        test: str | bytes | None = PASSING,
        *,
        dockerfile: str | None = "FROM debian:bookworm-slim\nWORKDIR /app\n",
        toml: str = NO_NETWORK,
        files: dict[str, str] | None = None,
    ) -> Task:
        folder = tmp_path / f"task-{len(list(tmp_path.iterdir()))}"
        contents: dict[str, str | bytes] = {
            "task.toml": toml,
            "instruction.md": "Write hello to /app/a.\n",
            "solution/solve.sh": "#!/bin/bash\necho hello >/app/a\n",
            **(files or {}),
        }
        if test is not None:
            contents["tests/test.sh"] = test
        if dockerfile is not None:
            contents["environment/Dockerfile"] = dockerfile
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_task(folder)

    return make


@pytest.fixture
def lint(make_task: MakeTask) -> Lint:
    """Write a task and lint it."""

    def run(test: str | bytes | None = PASSING, *, offline: bool = False, **parts) -> list[Finding]:
        return list(lint_task(make_task(test, **parts), LintSettings(offline=offline)))

    return run


@pytest.fixture
def rules(lint: Lint) -> Callable[..., dict[str, str]]:
    """Lint a task and return its violated rules with their severities."""

    def run(test: str | bytes | None = PASSING, **parts) -> dict[str, str]:
        return {finding.rule: str(finding.severity) for finding in lint(test, **parts)}

    return run
