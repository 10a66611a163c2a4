"""Void verdicts of exceptions: a full disk is distinguished from a bug."""

import errno
import os
from pathlib import Path

import pytest

from plimsoll.core.file_systems import disk_full_reason
from plimsoll.trials.verdicts import Cause, Evidence
from plimsoll.trials.voids import void_of


def no_space(*names: str) -> OSError:
    name, other = (*names, None, None)[:2]
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name, None, other)


def test_a_bug_leaves_its_traceback_in_the_folder_of_the_trial(tmp_path: Path):
    try:
        raise KeyError("what")
    except KeyError as error:
        verdict = void_of(error, tmp_path / "trial")
    assert (verdict.cause, verdict.reason) == (Cause.BUG, "KeyError: 'what'")
    assert verdict.evidence == (Evidence("the trace", "bug.txt"),)
    assert "Traceback" in (tmp_path / "trial/bug.txt").read_text()


def test_an_unwritable_traceback_does_not_hide_the_bug(tmp_path: Path):
    (tmp_path / "file").touch()
    verdict = void_of(KeyError("what"), tmp_path / "file/trial")
    assert verdict.cause is Cause.BUG
    assert verdict.reason == "KeyError: 'what' (bug.txt not written: Not a directory)"


@pytest.mark.parametrize(
    "error",
    [
        no_space(),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        ExceptionGroup("both", [no_space(), no_space()]),
    ],
    ids=["full", "quota", "group"],
)
def test_a_full_disk_is_not_a_bug_and_has_one_reason_for_all_tickets(
    error: Exception, tmp_path: Path
):
    verdicts = {void_of(error, tmp_path / name) for name in ("a", "b")}
    (verdict,) = verdicts
    assert verdict.cause is Cause.SANDBOX
    assert "is full (" in verdict.reason
    assert "make room there" in verdict.reason
    assert not list(tmp_path.iterdir())


def test_a_full_disk_does_not_hide_another_error():
    both = ExceptionGroup("both", [no_space(), KeyError("what")])
    assert void_of(both).cause is Cause.BUG


def test_the_named_file_system_is_the_one_written_to(tmp_path: Path):
    mount = next(path for path in (tmp_path, *tmp_path.parents) if path.is_mount())
    assert f"at {mount} is full" in disk_full_reason(
        no_space(str(tmp_path / "none/x")), Path("/proc")
    )
    assert f"at {mount} is full" in disk_full_reason(no_space("/proc/version", str(tmp_path / "x")))
    assert f"at {mount} is full" in disk_full_reason(no_space(), tmp_path)
    assert disk_full_reason(PermissionError(errno.EACCES, "no"), tmp_path) == ""
