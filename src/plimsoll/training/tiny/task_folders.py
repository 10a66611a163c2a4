"""Instances written as task folders."""

from pathlib import Path

from plimsoll.training.tiny.instances import Instance, demo_tasks

__all__ = ["write_demo", "write_task"]

DESCRIPTIONS = {
    "write": "Write a line to a new file",
    "find": "Find a line in a log",
    "edit": "Change a setting of a config",
    "fix": "Make a failing test pass",
}

SETTINGS = """\
schema_version = "1.4"

[task]
name = "plimsoll/{name}"
description = "{description}"
keywords = ["demo", "{kind}"]

[metadata]
difficulty = "easy"
category = "demo"

[agent]
timeout_sec = 30

[verifier]
timeout_sec = 30

[environment]
cpus = 1
memory_mb = 512
network_mode = "no-network"
"""

DOCKERFILE = """\
FROM debian:bookworm-slim
WORKDIR /app
"""

COMPARE = """\
#!/bin/bash
# The reward is 1 when /app holds exactly the files of /tests/expected, else 0.
if diff -r /tests/expected /app; then
    echo "ok: /app is as expected"
    reward=1
else
    echo "FAIL: lines with < are expected, lines with > are there"
    reward=0
fi
echo "$reward" >/logs/verifier/reward.txt
"""

RUN_TEST = """\
#!/bin/bash
# The reward is 1 when the test passes, and is the one that was given, else 0.
cd /app || exit 1
reward=0
if cmp /tests/{test} {test} && report=$(python3 -B -S {test} 2>&1) && [[ $report == ok:* ]]; then
    reward=1
fi
echo "${{report:-FAIL}}"
echo "$reward" >/logs/verifier/reward.txt
"""


def write_demo(folder: Path) -> None:
    """Write the tasks of the demo, for training and held-out."""
    tasks = demo_tasks()
    for instance in tasks.training:
        write_task(folder / "tasks", instance)
    for instance in tasks.held_out:
        write_task(folder / "heldout", instance)


def write_task(folder: Path, instance: Instance) -> None:
    """Write a task into a subfolder of `folder` with its name."""
    for path, text in files_of(instance).items():
        file = folder / instance.name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def files_of(instance: Instance) -> dict[str, str]:
    """The files of a task folder by relative path."""
    settings = SETTINGS.format(
        name=instance.name, kind=instance.kind, description=DESCRIPTIONS[instance.kind]
    )
    copied = "COPY files/ ./\n" if instance.files else ""
    return {
        "task.toml": settings,
        "instruction.md": f"{instance.instruction}\n",
        "environment/Dockerfile": DOCKERFILE + copied,
        **{f"environment/files/{path}": text for path, text in instance.files.items()},
        "solution/solve.sh": "\n".join(["#!/bin/bash", *instance.commands, ""]),
        **grader(instance),
    }


def grader(instance: Instance) -> dict[str, str]:
    if instance.test is None:
        after = {**instance.files, instance.target: instance.result}
        expected = {f"tests/expected/{path}": text for path, text in after.items()}
        return {"tests/test.sh": COMPARE, **expected}
    return {
        "tests/test.sh": RUN_TEST.format(test=instance.test),
        f"tests/{instance.test}": instance.files[instance.test],
    }
