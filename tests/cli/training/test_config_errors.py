"""Messages about training configs that are wrong or have no effect."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from training_files import GRADE, lines, make_model, write_training

from plimsoll.cli.terminal.start import start_run
from plimsoll.core.errors import PlimsollError

WriteTask = Callable[..., Path]

pytestmark = pytest.mark.timeout(240)


def config_error(file: Path) -> str:
    """The error message of an invalid training config. Checks that no run directory is left."""
    out = file.parent / "run"
    with pytest.raises(PlimsollError) as error:
        start_run(file, out=out, keep_going=False, as_json=False)
    assert not out.exists()
    return str(error.value)


def test_config_errors_are_reported_before_a_model_is_loaded(write_task: WriteTask, tmp_path: Path):
    missing = {"model": "a model that would take minutes"}
    write_task("a", test=GRADE)
    file = write_training(tmp_path, training=missing, tasks="nowhere")
    assert config_error(file) == f"[run] tasks: {tmp_path}/nowhere: no such folder"
    file = write_training(tmp_path, training=missing)
    file.write_text(f'{file.read_text()}[evaluation]\ntasks = "model"\n')
    assert config_error(file).startswith(f"[evaluation] tasks: {tmp_path}/model: no task found")
    file = write_training(tmp_path, training=missing, group_size=1)
    assert "group_size is 1, and grpo compares the trials of a group" in config_error(file)
    file = write_training(tmp_path, training={"policy": "openai", **missing})
    assert "name them in [policy] urls" in config_error(file)
    urls = '[policy]\nurls = ["http://127.0.0.1:9/v1"]\n'
    file.write_text(file.read_text().replace("[policy]\n", urls))
    assert "http://127.0.0.1:9/v1" in config_error(file)
    file = write_training(tmp_path, training=missing)
    assert "hf download ORGANIZATION/NAME --local-dir" in config_error(file)


def test_sampling_that_log_probabilities_ignore_causes_a_warning(
    write_task: WriteTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_task("a", test=GRADE)
    model = make_model(tmp_path / "model")
    file = write_training(
        tmp_path, training={"mode": "async", "clip_high": 0.28}, steps=2, group_size=2
    )
    usual = file.read_text()
    path = model / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 0.6}))
    for sampling, is_warned in (("asked", True), ("model", False)):
        file.write_text(usual.replace("[policy]\n", f'[policy]\nsampling = "{sampling}"\n'))
        out = tmp_path / f"run-{sampling}"
        assert start_run(file, out=out, keep_going=False, as_json=False) == 0
        said = capsys.readouterr().err
        assert ("generation_config.json sets temperature 0.6" in said) == is_warned
        assert "clip_low and clip_high have no effect: with one update" in said
        for line in lines(out / "steps.jsonl"):
            assert (line["flat_groups"] == line["groups"]) == bool(line["update"]["skipped"])
