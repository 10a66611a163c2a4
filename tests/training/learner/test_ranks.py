"""Two ranks learn the same as one process."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import items
from learner_ranks import VARIANTS, gathered, learner, train, trouble
from safetensors.torch import load_file
from tiny_model import make_model

from plimsoll.training.learner.learner import Learner
from ports import held_port

# Ranks load torch first, on machines that may be busy.
pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).with_name("learner_ranks.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote."""
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(folder), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def found(out: Path) -> dict[str, Any]:
    return json.loads((out / "found.json").read_text())


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, tuple[Learner, list[list[float]]]]:
    """The same in one process."""
    made: dict[str, tuple[Learner, list[list[float]]]] = {}
    for name in VARIANTS:
        one = learner(folder, name)
        made[name] = one, train(one)
    return made


def apart(found: dict[str, torch.Tensor], one: Learner) -> float:
    """The distance of weights beside that which a step of 1e-4 goes."""
    expected = one.weights().tensors
    differences = [(each - expected[name]).flatten() for name, each in found.items()]
    total = torch.cat(differences)
    return float(total.norm() / (1e-4 * len(total) ** 0.5))


EXACT = [name for name in VARIANTS if name != "bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_two_ranks_compute_the_losses_and_weights_of_one(out: Path, found, alone, name: str):
    one, expected = alone[name]
    for ours, theirs in zip(found["losses"][name], expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert apart(load_file(out / name / "model.safetensors"), one) < 1e-2


@pytest.mark.slow
def test_in_half_precision_two_ranks_compute_nearly_the_losses_of_one(out: Path, found, alone):
    """As on GPUs, where this is the default. Eight bits of a number are what it rounds to."""
    _, expected = alone["bfloat16"]
    for ours, theirs in zip(found["losses"]["bfloat16"], expected, strict=True):
        assert ours == pytest.approx(theirs, rel=0.02, abs=0.02)
    kept = load_file(out / "bfloat16" / "model.safetensors")
    assert {each.dtype for each in kept.values()} == {torch.float32}, "the optimizer's own"


@pytest.mark.slow
def test_all_ranks_make_the_same_updates(out: Path, found, alone):
    for ours, theirs in zip(found["losses"]["shared"], found["losses"]["grpo"], strict=True):
        assert ours == pytest.approx(theirs)
    assert apart(load_file(out / "shared" / "model.safetensors"), alone["grpo"][0]) < 1e-2


@pytest.mark.slow
def test_weights_of_two_ranks_are_gathered_completely(found, alone):
    whole = {name: list(each.shape) for name, each in alone["grpo"][0].weights().tensors.items()}
    assert found["whole"] == whole


@pytest.mark.slow
def test_tied_weights_count_once_on_any_number_of_ranks(found, alone):
    one = alone["grpo"][0]
    sizes = {each.data_ptr(): each.numel() for each in one.weights().tensors.values()}
    assert len(sizes) < len(one.weights().tensors)
    assert found["parameters"] == one.parameters == sum(sizes.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_only_the_writing_rank_holds_a_checkpoint_in_memory(out: Path, alone, name: str):
    first, second = (int((out / f"{name}.{rank}").read_text()) for rank in range(2))
    assert first == gathered(alone[name][0])
    assert second == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_checkpoint_of_two_ranks_resumes_on_one(folder: Path, out: Path, alone, name: str):
    one = learner(folder, name)
    one.load(out / name)
    undisturbed, _ = alone[name]
    ours, theirs = one.step(items(6, seed=99)), undisturbed.step(items(6, seed=99))
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3, abs=1e-5)
    assert ours.learning_rate == theirs.learning_rate
    assert apart(dict(one.weights().tensors), undisturbed) < 2e-2


@pytest.mark.slow
def test_two_ranks_resume_from_a_checkpoint_like_one(folder: Path, out: Path, found):
    one = learner(folder, "grpo")
    one.load(out / "grpo")
    assert found["after"] == pytest.approx(one.step(items(6, seed=99)).loss, rel=1e-4)


RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["plimsoll.training.learner.distributed"])


@pytest.mark.parametrize(
    ("scene", "ends", "says"),
    [
        ("the first is killed", (3, 1), ("", "onnection")),
        ("the first fails in a step", (1, 1), ("lost their connection: no memory", "onnection")),
        ("the first is to save after a step that failed", (1, 1), ("out of sync", "onnection")),
        (
            "the first fails to gather a checkpoint",
            (1, 1),
            ("lost their connection", "onnection"),
        ),
        ("a follower never begins", (1, 3), ("onnection", "")),
        ("a follower ends in a step", (1, 3), ("lost their connection", "")),
        ("a sample is bad", (1, 0), ("has token id 100000", "")),
    ],
)
def test_no_rank_waits_for_a_dead_one(
    folder: Path, tmp_path: Path, scene: str, ends: tuple[int, int], says: tuple[str, str]
):
    """Without torchrun: nobody is there to end the other."""
    files = [tmp_path / "0", tmp_path / "1"]
    with held_port() as port:
        ranks = [
            RANKS.Process(target=trouble, args=(folder, scene, rank, port, files[rank]))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(110)
    found = tuple(rank.exitcode for rank in ranks)
    for rank in ranks:
        rank.kill()
    assert found == ends
    for file, expected in zip(files, says, strict=True):
        assert not expected or expected in file.read_text()
