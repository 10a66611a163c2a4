"""`plimsoll config`: prints the whole config, documented and loadable."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, Popen

import pytest

from plimsoll.config.dump import documentation, dump_config
from plimsoll.config.file import Config, load_config

Plimsoll = Callable[..., CompletedProcess[str]]


def test_the_output_is_the_config_with_every_default(plimsoll: Plimsoll, tmp_path: Path):
    (tmp_path / "night.toml").write_text('[run]\ntasks = "tasks"\nsteps = 3\nagent = "nop"\n')
    ended = plimsoll("config", "night.toml")
    assert ended.returncode == 0, ended.stderr
    (tmp_path / "again.toml").write_text(ended.stdout)
    config = load_config(tmp_path / "night.toml")
    assert load_config(tmp_path / "again.toml") == config
    assert config.run.tasks == str(tmp_path / "tasks")
    assert json.loads(plimsoll("config", "night.toml", "--json").stdout) == config.model_dump(
        mode="json"
    )


@pytest.mark.parametrize("asked", [("--help",), ("config",), ("run", "--help"), ("status", "x")])
def test_commands_that_run_nothing_import_neither_torch_nor_ray(
    start: Callable[..., Popen[str]], asked: tuple[str, ...]
):
    _, said = start(*asked, python=("-X", "importtime", "-m", "plimsoll")).communicate()
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in said.splitlines()}
    assert "click" in imported
    assert not imported & {"torch", "ray"}


def test_every_key_is_documented():
    text = dump_config(Config()).splitlines()
    for name, table in Config.model_fields.items():
        kind = table.annotation
        assert kind is not None
        assert f"[{name}]" in text
        for key, field in kind.model_fields.items():
            if not hasattr(field.annotation, "model_fields"):
                assert documentation(kind).get(key), f"{name}.{key} is not documented"


def test_all_kinds_of_values_can_be_loaded_again(tmp_path: Path):
    text = (
        '[local]\nroots = { "a:1" = ".", "b \\"x\\"" = "." }\n'
        '[docker]\nallow_plain = ["10.0.0.1", "tab\\tand \\u007f and ü"]\n'
        '[workers.ray]\nresources = { CPU = 2, tpu = 0.5 }\nlabels = { zone = "a" }\n'
    )
    (tmp_path / "one.toml").write_text(text)
    config = load_config(tmp_path / "one.toml")
    (tmp_path / "two.toml").write_text(dump_config(config))
    assert load_config(tmp_path / "two.toml") == config


def test_a_mistake_is_reported_with_line_and_expected_value(plimsoll: Plimsoll, tmp_path: Path):
    for wrong, said in (
        ("[run]\nstep = 3\n", "plimsoll.toml:2: unknown key run.step (did you mean steps?)"),
        (
            '[run]\ngroup_policy = "some"\n',
            "run.group_policy: expected complete, min_graded or void",
        ),
        ("[run]\nslack_seconds = 0\n", "run.slack_seconds: expected a number above 0"),
        ("[workers.ray]\nadress = 'x'\n", "unknown key workers.ray.adress (did you mean address?)"),
        ('[workers]\nengine = "threads"\n', "workers.engine: expected process or ray"),
    ):
        (tmp_path / "plimsoll.toml").write_text(wrong)
        ended = plimsoll("config")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert said in ended.stderr
