"""Runs whose directory is on a network file system, for which a FUSE mount stands in."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from run_files import Plimsoll, Start, check_ledger, rows, wait_for, write_run

from helpers import marked
from parts import need
from plimsoll.core.file_systems import file_system_type

WriteTask = Callable[..., Path]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """Mounts `runs/` with FUSE. Yields the folder behind the mount."""
    tools = shutil.which("bindfs") and Path("/dev/fuse").exists()
    need("fuse", None if tools else "there is no bindfs or no /dev/fuse")
    behind, mount = tmp_path / "behind", tmp_path / "runs"
    behind.mkdir()
    mount.mkdir()
    mounted = subprocess.run(["bindfs", behind, mount], capture_output=True, text=True)
    need("fuse", None if mounted.returncode == 0 else f"bindfs: {mounted.stderr.strip()}")
    assert file_system_type(mount) == "fuse"
    yield behind
    subprocess.run(["umount", "--lazy", mount], check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("sandboxes", "shared")
def test_a_killed_run_on_a_network_file_system_resumes_from_its_local_ledger(
    write_task: WriteTask, plimsoll: Plimsoll, start: Start, tmp_path: Path, mark: str
):
    write_task("a", solve="sleep 0.3; touch /tmp/done")
    write_run(tmp_path, steps=4)
    process = start("run", "night.toml", "--out", "runs/night")
    run = tmp_path / "runs/night"
    wait_for(lambda: len(rows(run)) >= 4, process)
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    for pid, what in marked(mark).items():
        if "plimsoll.workers" in what:
            os.kill(pid, signal.SIGKILL)
    (ledger,) = (tmp_path / "home/ledgers").glob("night-*/ledger.db")
    assert f"{ledger.parent} on " in out
    assert "(the run directory is on fuse)" in out
    assert not (run / "ledger.db").exists()
    killed = plimsoll("status", "night").stdout
    assert "killed" in killed
    assert f"ledger      {ledger.parent} on " in killed
    before = len(rows(run))
    assert plimsoll("resume", "night").returncode == 0
    check_ledger(plimsoll, "night")
    assert len(rows(run)) > before
    assert [path.parent for path in (tmp_path / "home/ledgers").glob("*/ledger.db")] == [
        ledger.parent
    ]
    # Another host has the shared directory, but not the ledger.
    ledger.parent.rename(tmp_path / "disk-of-gpu-7")
    pointer = msgspec.json.decode((run / "ledger.json").read_bytes())
    pointer |= {"host": "gpu-7~00112233", "folder": f"/srv/{ledger.parent.name}"}
    (run / "ledger.json").write_bytes(msgspec.json.encode(pointer))
    for command in ("resume", "ledger"):
        there = plimsoll(command, "night")
        assert there.returncode == 2, there.stdout
        assert "is on gpu-7, in /srv/night-" in there.stderr, there.stderr
        assert "copy that folder to" in there.stderr
    assert plimsoll("status", "night").returncode == 0
    assert "is not running" in plimsoll("stop", "night").stdout


@pytest.mark.slow
@pytest.mark.usefixtures("sandboxes", "shared")
def test_a_ledger_path_on_a_network_file_system_is_refused(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a", solve="touch /tmp/done")
    config = write_run(tmp_path)
    config.write_text(config.read_text() + '[storage]\nledger = "runs/ledgers"\n')
    refused = plimsoll("run", "night.toml", "--out", "runs/night")
    assert refused.returncode == 2
    assert "[storage] ledger" in refused.stderr
    assert "is on fuse" in refused.stderr
    assert not (tmp_path / "runs/night").exists()
