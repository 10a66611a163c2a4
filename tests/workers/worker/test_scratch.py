"""Temporary files of workers: removed on exit, or after a kill by the next worker."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from plimsoll.sandboxes.host.temporary import remove_leftovers
from plimsoll.workers.worker.scratch import leftovers, scratch

DIES = """
import os, sys, tempfile
from plimsoll.workers.worker.scratch import scratch
with scratch(sys.argv[1]):
    print(tempfile.mkdtemp(), flush=True)
    os._exit(0)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this test and of its child processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def leftovers_of_dead_worker(run: str) -> Path:
    done = subprocess.run([sys.executable, "-c", DIES, run], capture_output=True, text=True)
    return Path(done.stdout.strip()).parent


def test_temporary_files_are_removed_with_their_owner(temporary: Path):
    with scratch("night") as folder:
        (made,) = (Path(tempfile.mkdtemp()),)
        (made / "file").write_text("x")
        made.chmod(0o500)
        assert made.parent == folder
        assert folder.parent == temporary
    assert list(temporary.iterdir()) == []
    assert tempfile.gettempdir() == str(temporary)


def test_temporary_files_of_a_dead_owner_are_found_by_run_and_removed(temporary: Path):
    night, day = leftovers_of_dead_worker("night"), leftovers_of_dead_worker("day")
    assert leftovers("night") == [night]
    assert leftovers("day") == [day]
    remove_leftovers()
    assert list(temporary.iterdir()) == []
