"""Requirements of tests: a missing one skips the test, or fails it if it is required."""

import pytest

from parts import need


def test_an_available_requirement_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLIMSOLL_REQUIRE", "docker")
    need("docker", None)


def test_a_missing_requirement_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLIMSOLL_REQUIRE", "kubernetes,userns")
    with pytest.raises(pytest.skip.Exception, match="docker: no engine answers"):
        need("docker", "no engine answers")


def test_a_missing_requirement_that_must_exist_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLIMSOLL_REQUIRE", "local, docker")
    with pytest.raises(pytest.fail.Exception, match="no engine answers"):
        need("docker", "no engine answers")
