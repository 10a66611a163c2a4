"""A saved learner is an ordinary model with the state to resume from."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import config, items, save
from planted_code import Planted
from safetensors import SafetensorError
from tiny_model import make_model

from plimsoll.core.errors import TrainingError
from plimsoll.training.learner.learner import Learner
from plimsoll.training.models import load_model, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), generation={"temperature": 0.7})


def make_learner(folder: Path, **values: Any) -> Learner:
    settings = config(**{"learning_rate": 1e-3, "schedule": "linear", **values})
    return Learner(settings, folder, steps=6)


def same(one: Learner, other: Learner) -> bool:
    ours, theirs = one.weights().tensors, other.weights().tensors
    return ours.keys() == theirs.keys() and all(
        torch.equal(tensor, theirs[name]) for name, tensor in ours.items()
    )


@pytest.mark.parametrize(
    "values",
    [{"updates": 2}, {"algorithm": "ppo"}, {"kl": 0.1, "weight_decay": 0.1}],
    ids=str,
)
def test_a_reloaded_learner_continues_bit_for_bit(folder: Path, tmp_path: Path, values: dict):
    whole, first = make_learner(folder, **values), make_learner(folder, **values)
    reports = [whole.step(items(seed=step)) for step in range(6)]
    for step in range(3):
        first.step(items(seed=step))
    save(first, tmp_path / "checkpoint")
    second = make_learner(folder, **values)
    second.load(tmp_path / "checkpoint")
    for step in range(3, 6):
        report = second.step(items(seed=step))
        assert report.loss == reports[step].loss
        assert report.learning_rate == reports[step].learning_rate
        assert report.reference_kl == reports[step].reference_kl
    assert same(whole, second)


def test_the_count_of_bad_steps_is_saved(folder: Path, tmp_path: Path):
    learner = make_learner(folder)
    bad = items()
    bad[0].logprobs[len(bad[0].ids) - 1] = float("nan")
    learner.step(bad)
    save(learner, tmp_path / "checkpoint")
    other = make_learner(folder)
    other.load(tmp_path / "checkpoint")
    assert other.bad_steps == learner.bad_steps == 1


def test_a_saved_folder_is_a_model_with_its_tokenizer(folder: Path, tmp_path: Path):
    learner = make_learner(folder)
    learner.step(items())
    save(learner, tmp_path / "saved")
    model = load_model(tmp_path / "saved", device="cpu", dtype="float32")
    state = model.state_dict()
    assert all(torch.equal(each, state[name]) for name, each in learner.weights().tensors.items())
    assert model.generation_config.temperature == 0.7
    tokenizer = load_tokenizer(tmp_path / "saved")
    assert tokenizer.chat_template == load_tokenizer(folder).chat_template


def test_an_invalid_generation_config_is_copied_unchanged(tmp_path: Path):
    folder = make_model(tmp_path / "model")
    given = {"do_sample": False, "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(given))
    save(make_learner(folder), tmp_path / "saved")
    assert json.loads((tmp_path / "saved/generation_config.json").read_text()) == given
    make_learner(folder).load(tmp_path / "saved")


def test_a_learner_can_start_from_a_saved_folder(folder: Path, tmp_path: Path):
    learner = make_learner(folder)
    learner.step(items())
    save(learner, tmp_path / "saved")
    assert same(learner, make_learner(tmp_path / "saved"))


def test_a_checkpoint_before_the_first_step_can_be_resumed(folder: Path, tmp_path: Path):
    whole, other = make_learner(folder), make_learner(folder)
    save(whole, tmp_path / "saved")
    other.load(tmp_path / "saved")
    assert whole.step(items()).loss == other.step(items()).loss
    assert same(whole, other)


def test_weights_name_the_folder_of_the_initial_model(folder: Path):
    assert make_learner(folder).weights().base == folder


def test_a_full_disk_is_reported_and_the_learner_stays_usable(folder: Path, tmp_path: Path):
    learner = make_learner(folder)
    learner.step(items())
    for limit in (10_000, 600_000):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises((OSError, RuntimeError, SafetensorError)):
                save(learner, tmp_path / f"{limit}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    save(learner, tmp_path / "saved")
    other = make_learner(folder)
    other.load(tmp_path / "saved")
    assert same(learner, other)


def test_code_in_a_checkpoint_is_not_executed(folder: Path, tmp_path: Path):
    save(make_learner(folder), tmp_path / "saved")
    torch.save({"steps": Planted(tmp_path / "planted")}, tmp_path / "saved/learner.pt")
    with pytest.raises(TrainingError, match=r"learner\.pt cannot be read"):
        make_learner(folder).load(tmp_path / "saved")
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("damage", ["gone", "cut", "text"])
def test_a_damaged_checkpoint_is_named(folder: Path, tmp_path: Path, damage: str):
    learner = make_learner(folder)
    learner.step(items())
    save(learner, tmp_path / "saved")
    file = tmp_path / "saved" / "learner.pt"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    else:
        file.write_text("not a checkpoint")
    with pytest.raises(TrainingError, match=r"learner\.pt cannot be read"):
        make_learner(folder).load(tmp_path / "saved")


def test_a_checkpoint_without_a_critic_is_refused_by_ppo(folder: Path, tmp_path: Path):
    learner = make_learner(folder)
    learner.step(items())
    save(learner, tmp_path / "saved")
    with pytest.raises(TrainingError, match="no critic"):
        make_learner(folder, algorithm="ppo").load(tmp_path / "saved")
