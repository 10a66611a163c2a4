"""Tasks and configs of runs that another trainer drives."""

import json
from pathlib import Path

import msgspec

from helpers import HOST, write_task_folder
from plimsoll.runs.files.results import Row

__all__ = ["read_rows", "write_config"]

GRADERS = {
    "coin": "echo $((RANDOM % 2)) > /logs/verifier/reward.txt\n",
    "touch": "test -e /app/done && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n",
    "broken": "true\n",
}
"""The grader of each task: random, the agent's work, and none at all."""


def write_config(folder: Path, home: Path, *tasks: str, concurrency: int = 2) -> Path:
    """Write a config with these of the tasks above."""
    for name in tasks:
        write_task_folder(
            folder / "tasks" / name,
            {
                "instruction.md": "Make the file /app/done.\n",
                "environment/Dockerfile": HOST,
                "tests/test.sh": GRADERS[name],
            },
        )
    file = folder / "night.toml"
    file.write_text(
        '[run]\ntasks = "tasks"\nagent = "shell"\n'
        f"[workers]\nconcurrency = {concurrency}\ngrace_seconds = 1\n"
        f"[local]\nhome = {json.dumps(str(home))}\n"
    )
    return file


def read_rows(directory: Path) -> list[Row]:
    """All trials of a run, by their tickets."""
    lines = (directory / "results.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=Row) for line in lines]
    return sorted(rows, key=lambda row: row.ticket)
