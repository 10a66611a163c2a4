"""Ending the process that drives a run: it is signalled, and the wait is reported."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from plimsoll.core.errors import UsageError
from plimsoll.core.ids import Owner
from plimsoll.ledger.journal.location import LOCK
from plimsoll.ledger.journal.lock import Lock
from plimsoll.runs import controller_process
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.sandboxes.host.owners import this_process

DRIVER = """
import pathlib, signal, sys, time
from plimsoll.runs import controller_process as control
from plimsoll.runs.files.directory import RunDirectory

signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(time.monotonic()))
control.claim(RunDirectory(pathlib.Path(sys.argv[1])))
print("ready", flush=True)
while len(signals) < int(sys.argv[2]):
    time.sleep(0.01)
time.sleep(float(sys.argv[3]))
"""
Drive = Callable[[int, float], "subprocess.Popen[str]"]


@pytest.fixture
def drive(directory: RunDirectory) -> Iterator[Drive]:
    """Start a process that drives the run and exits some seconds after a number of signals."""
    started: list[subprocess.Popen[str]] = []

    def start(signals: int, seconds: float) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", DRIVER, directory.path, str(signals), str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("now", [False, True], ids=["in order", "now"])
def test_a_suspended_controller_receives_the_stop_signal(
    drive: Drive, directory: RunDirectory, now: bool, monkeypatch: pytest.MonkeyPatch
):
    # If both signals were merged, the wait for the second would never end.
    monkeypatch.setattr(controller_process, "_SIGNAL_INTERVAL_SECONDS", 3.0)
    process = drive(2 if now else 1, 0.0)
    process.send_signal(signal.SIGSTOP)
    owner = controller_process.controller(directory)
    assert owner is not None
    controller_process.end_run(owner, directory, now=now)
    assert process.wait(30) == 0


def test_a_long_wait_is_logged(
    drive: Drive,
    directory: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(controller_process, "_FIRST_MESSAGE_SECONDS", 0.2)
    process = drive(1, 2.0)
    owner = controller_process.controller(directory)
    assert owner is not None
    began = time.monotonic()
    controller_process.end_run(owner, directory, now=False)
    assert time.monotonic() - began > 1
    said = [record.getMessage() for record in caplog.records]
    assert 1 <= len(said) <= 3
    assert f"still waiting for pid {process.pid}" in said[0]
    assert f"kill -9 {process.pid}" in said[0]


@pytest.fixture
def elsewhere(directory: RunDirectory) -> RunDirectory:
    """A run that a process of another host or container claimed and did not release."""
    owner = Owner("container~0a1b2c3d", 1, "boot:7")
    directory.controller.write_bytes(msgspec.json.encode(owner))
    return directory


def test_a_run_of_a_removed_container_has_no_controller(elsewhere: RunDirectory):
    controller_process.check_idle(elsewhere)  # the process never took the lock
    Lock.take(elsewhere.path / LOCK, this_process()).release()
    controller_process.check_idle(elsewhere)
    assert controller_process.controller(elsewhere) is None


def test_a_run_of_another_live_container_is_rejected(elsewhere: RunDirectory):
    lock = Lock.take(elsewhere.path / LOCK, this_process())
    try:
        owner = controller_process.controller(elsewhere)
        assert owner is not None
        with pytest.raises(UsageError, match=r"running: pid 1 on container: stop it there$"):
            controller_process.check_idle(elsewhere)
        with pytest.raises(UsageError, match=r"driven by pid 1 on container: stop it there$"):
            controller_process.end_run(owner, elsewhere, now=False)
    finally:
        lock.release()


def test_an_unreadable_lock_gives_an_error_with_a_remedy(elsewhere: RunDirectory):
    (elsewhere.path / LOCK).symlink_to(LOCK)  # the lock cannot be opened
    with pytest.raises(UsageError, match=f"is gone, remove {elsewhere.controller}"):
        controller_process.check_idle(elsewhere)
