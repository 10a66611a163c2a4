"""`plimsoll bake`: unknown agents and failed installations."""

from pathlib import Path

import pytest


def test_an_agent_that_cannot_be_baked_is_named_with_those_that_can(plimsoll, tmp_path: Path):
    done = plimsoll("bake", "oracle", "--to", str(tmp_path / "layer"))
    assert done.returncode == 2
    assert "'oracle' cannot be baked; choose from claude-code, codex" in done.stderr
    assert not (tmp_path / "layer").exists()


def test_a_missing_registry_is_reported_in_one_message_with_a_remedy(
    plimsoll, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    done = plimsoll("bake", "mini-swe-agent@0.0.1", "--to", str(tmp_path / "layer"))
    assert done.returncode == 2
    assert "plimsoll: mini-swe-agent 0.0.1 could not be installed: " in done.stderr
    assert "this host reaches the registry of pip," in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("bake", "mini-swe-agent"), ("stage", "tasks")])
@pytest.mark.parametrize("version", ["banana", "3", "3.12.1", ""])
def test_an_invalid_python_version_is_refused(
    plimsoll, tmp_path: Path, words: tuple[str, ...], version: str
):
    done = plimsoll(*words, "--to", "layer", "--python", version)
    assert done.returncode == 2
    assert f"{version!r} is not a Python version: write it as 3.12" in done.stderr
    assert not (tmp_path / "layer").exists()
