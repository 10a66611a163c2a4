"""The quarantine list: read by runs, written by validate, editable by hand."""

from pathlib import Path

import pytest

from plimsoll.core.errors import UsageError
from plimsoll.runs.validation.quarantine import Quarantine


def test_a_task_is_quarantined_on_its_backend_only():
    made = Quarantine(("a\tlocal\tno curl",))
    assert made.reason("a", "local") == "no curl"
    assert made.reason("a", "docker") is None
    assert made.reason("b", "local") is None


def test_a_name_listed_by_hand_applies_to_every_backend():
    made = Quarantine(("# known to hang", "a b", "# c"))
    assert made.reason("a b", "docker") == "listed by hand"
    assert made.reason("c", "docker") is None


def test_only_validated_tasks_are_replaced():
    before = Quarantine(("# mine", "by-hand", "a\tlocal\told", "b\tlocal\told", "a\tdocker\told"))
    after = before.replaced(["a", "c"], "local", {"c": "two\nlines\tof it"})
    assert after.lines == (
        "# mine",
        "by-hand",
        "b\tlocal\told",
        "a\tdocker\told",
        "c\tlocal\ttwo lines of it",
    )


def test_a_written_list_can_be_loaded(tmp_path: Path):
    made = Quarantine().replaced([], "local", {"sub/a": "größer"})
    (tmp_path / "quarantine.txt").write_text(made.text())
    assert Quarantine.load(tmp_path) == made


def test_a_missing_file_is_an_empty_list_and_a_broken_file_is_an_error(tmp_path: Path):
    assert Quarantine.load(tmp_path) == Quarantine()
    (tmp_path / "quarantine.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"quarantine\.txt: not UTF-8"):
        Quarantine.load(tmp_path)


@pytest.mark.parametrize("line", ["a local no curl", "b"])
def test_a_line_without_a_task_is_rejected_with_its_number(tmp_path: Path, line: str):
    (tmp_path / "a").mkdir()
    with pytest.raises(UsageError, match=rf"quarantine.txt:2: there is no task {line}"):
        Quarantine(("a", line)).check(tmp_path / ".plimsoll", tmp_path)


def test_a_line_of_a_removed_task_is_ignored(tmp_path: Path):
    (tmp_path / "a").mkdir()
    Quarantine(("# b", "", "a", "./a/", "b\tlocal\tno curl")).check(tmp_path, tmp_path)


def test_equivalent_spellings_of_a_folder_match():
    assert Quarantine(("./a/",)).reason("a", "local") == "listed by hand"


def test_a_line_written_by_validate_does_not_count_as_listed_by_hand():
    made = Quarantine(("a\tlocal\tno curl",))
    assert made.by_hand("a", "local", "no\ncurl") is None
    assert made.by_hand("a", "local", "no wget") == "no curl"
    assert Quarantine((*made.lines, "a")).by_hand("a", "local", "no curl") == "listed by hand"
