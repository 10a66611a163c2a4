"""A test whose part is absent is skipped, and fails where that part may not be absent."""

import pytest

from parts import need


def test_a_part_that_is_there_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLIMSOLL_REQUIRE", "docker")
    need("docker", None)


def test_an_absent_part_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLIMSOLL_REQUIRE", "kubernetes,userns")
    with pytest.raises(pytest.skip.Exception, match="docker: no engine answers"):
        need("docker", "no engine answers")


def test_an_absent_part_that_is_required_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLIMSOLL_REQUIRE", "local, docker")
    with pytest.raises(pytest.fail.Exception, match="no engine answers"):
        need("docker", "no engine answers")
