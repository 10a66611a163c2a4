import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Left = Callable[..., list[str]]


_before: set[int] = set()
"""Children of this process at the start of a test: daemons and other processes of earlier tests."""


@pytest.fixture(autouse=True)
def _others() -> None:
    """Record the existing processes before anything else."""
    _before.clear()
    _before.update(_processes())


def _processes() -> dict[int, str]:
    """All descendants of this process, zombies included, without those of other tests."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            parents[int(entry.name)] = (int(parent), f"{name} {state}")
    found: dict[int, str] = {}
    grown = {os.getpid()}
    # Children of those belong to other tests as well.
    while grown:
        grown = {pid for pid, (parent, _) in parents.items() if parent in grown}
        grown -= {*found, *_before}
        found |= {pid: parents[pid][1] for pid in grown}
    return found


def _left(home: Path, ids: list[str] | None = None) -> list[str]:
    """Leftovers of sandboxes: folders of a home, control groups, mounts."""
    found = [str(x) for x in (home / "sandboxes").iterdir()]
    names = ids if ids is not None else []
    for base in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")):
        for group in base.glob("plimsoll-*"):
            if group.name.removeprefix("plimsoll-") in names:
                found.append(str(group))
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [line for line in mounts if str(home / "sandboxes") in line]


@pytest.fixture
def left() -> Left:
    """Lists the leftovers of sandboxes in a home, and of control groups by sandbox id."""
    return _left


@pytest.fixture
def children() -> Callable[[], dict[int, str]]:
    return _processes


@pytest.fixture
def idle_groups() -> Callable[[], set[Path]]:
    """Lists control groups of sandboxes without processes."""

    def idle() -> set[Path]:
        found: set[Path] = set()
        for group in Path("/sys/fs/cgroup").glob("*/plimsoll-*"):
            with contextlib.suppress(OSError):
                if not (group / "cgroup.procs").read_text():
                    found.add(group)
        return found

    return idle
