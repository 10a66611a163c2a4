"""`plimsoll bake`: what can be baked, and what is said where something cannot."""

from pathlib import Path


def test_an_agent_that_cannot_be_baked_is_named_with_those_that_can(plimsoll, tmp_path: Path):
    done = plimsoll("bake", "oracle", "--to", str(tmp_path / "layer"))
    assert done.returncode == 2
    assert "'oracle' cannot be baked; those that can are claude-code, codex" in done.stderr
    assert not (tmp_path / "layer").exists()


def test_without_a_registry_one_message_says_what_to_look_at(plimsoll, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    done = plimsoll("bake", "mini-swe-agent@0.0.1", "--to", str(tmp_path / "layer"))
    assert done.returncode == 2
    assert "plimsoll: mini-swe-agent 0.0.1 could not be installed: " in done.stderr
    assert "does this host reach the registry of pip?" in done.stderr
    assert "Traceback" not in done.stderr
