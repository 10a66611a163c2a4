"""Benchmark of loading a folder of tasks, compared with a bare TOML parse of the same files.

python bench/bench_tasks.py [TASKS]
"""

import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

from plimsoll.tasks.loader import load_tasks

TASK = """\
schema_version = "1.4"
artifacts = ["/app/out", {{ source = "/app/log", exclude = ["*.tmp"] }}]

[task]
name = "bench/task-{index}"
description = "Repair the parser so that every test passes."
keywords = ["parser", "python"]
authors = [{{ name = "A. Writer", email = "writer@example.org" }}]

[metadata]
difficulty = "medium"
category = "software"

[agent]
timeout_sec = 900.0

[verifier]
timeout_sec = 300.0
env = {{ LEVEL = "${{LEVEL:-1}}" }}

[environment]
build_timeout_sec = 600.0
cpus = 2
memory_mb = 2048
storage_mb = 10240
network_mode = "no-network"

[environment.healthcheck]
command = "true"
"""


def make_tasks(root: Path, count: int) -> None:
    for index in range(count):
        folder = root / f"shard-{index % 20:02}" / f"task-{index:05}"
        for name in ("environment", "tests", "solution"):
            (folder / name).mkdir(parents=True)
        (folder / "task.toml").write_text(TASK.format(index=index))
        (folder / "instruction.md").write_text("Repair the parser.\n")
        (folder / "environment" / "Dockerfile").write_text("FROM scratch\n")
        (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
        (folder / "solution" / "solve.sh").write_text("true\n")


def best_of_three(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_tasks(root, count)
        files = sorted(root.glob("*/*/task.toml"))
        sides = {
            "load_tasks": best_of_three(lambda: load_tasks(root)),
            "tomllib alone": best_of_three(lambda: [tomllib.loads(f.read_text()) for f in files]),
        }
    print(f"{'':<15}{'tasks':>8}{'seconds':>10}{'tasks/s':>10}")
    for side, seconds in sides.items():
        print(f"{side:<15}{count:>8,}{seconds:>10.2f}{count / seconds:>10,.0f}")


if __name__ == "__main__":
    main()
