"""Benchmark of linting tasks, compared with loading the same tasks.

python bench/bench_lint.py [TASKS]

The tasks are copies of the valid and broken examples, linted without a network.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

from plimsoll.tasks.lint.linter import lint_tasks
from plimsoll.tasks.lint.parsed_task import LintSettings
from plimsoll.tasks.loader import load_tasks

EXAMPLES = Path(__file__).parents[1] / "examples"


def make_tasks(root: Path, count: int) -> None:
    sources = sorted(path.parent for path in EXAMPLES.glob("*/*/task.toml"))
    for number, source in enumerate(islice(cycle(sources), count)):
        shutil.copytree(source, root / f"{source.name}-{number:05}")


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_tasks(root, count)
        loaded = load_tasks(root)
        sides = {
            "lint_tasks": seconds(lambda: list(lint_tasks(loaded, LintSettings(offline=True)))),
            "load_tasks": seconds(lambda: load_tasks(root)),
        }
    print(f"{'':<15}{'tasks':>8}{'seconds':>10}{'tasks/s':>10}")
    for side, taken in sides.items():
        print(f"{side:<15}{count:>8,}{taken:>10.2f}{count / taken:>10,.0f}")


if __name__ == "__main__":
    main()
