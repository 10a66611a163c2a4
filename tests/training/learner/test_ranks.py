"""Two ranks learn the same as one process."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import distance, items
from learner_ranks import VARIANTS, gathered_size, make_learner, run_with_fault, train
from safetensors.torch import load_file
from tiny_model import make_model

from plimsoll.training.learner.learner import Learner
from ports import held_port

# Each rank imports torch first, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).with_name("learner_ranks.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of two ranks."""
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
def single(folder: Path) -> dict[str, tuple[Learner, list[list[float]]]]:
    """The learner and the figures of each variant, trained in one process."""
    made: dict[str, tuple[Learner, list[list[float]]]] = {}
    for name in VARIANTS:
        one = make_learner(folder, name)
        made[name] = one, train(one)
    return made


def distance_to(one: Learner, found: Mapping[str, torch.Tensor]) -> float:
    expected = one.weights().tensors
    some, others = (
        torch.cat([each[name].flatten() for name in found]) for each in (found, expected)
    )
    return distance(some, others)


EXACT = [name for name in VARIANTS if name != "bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_two_ranks_compute_the_losses_and_weights_of_one(out: Path, found, single, name: str):
    one, expected = single[name]
    for ours, theirs in zip(found["losses"][name], expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert distance_to(one, load_file(out / name / "model.safetensors")) < 1e-2


@pytest.mark.slow
def test_in_half_precision_two_ranks_compute_nearly_the_losses_of_one(out: Path, found, single):
    """bfloat16, the default on GPUs, keeps eight significant bits."""
    _, expected = single["bfloat16"]
    for ours, theirs in zip(found["losses"]["bfloat16"], expected, strict=True):
        assert ours == pytest.approx(theirs, rel=0.02, abs=0.02)
    kept = load_file(out / "bfloat16" / "model.safetensors")
    assert {each.dtype for each in kept.values()} == {torch.float32}, "the optimizer's weights"


@pytest.mark.slow
def test_all_ranks_make_the_same_updates(out: Path, found, single):
    for ours, theirs in zip(found["losses"]["shared"], found["losses"]["grpo"], strict=True):
        assert ours == pytest.approx(theirs)
    assert distance_to(single["grpo"][0], load_file(out / "shared" / "model.safetensors")) < 1e-2


@pytest.mark.slow
def test_weights_of_two_ranks_are_gathered_completely(found, single):
    whole = {name: list(each.shape) for name, each in single["grpo"][0].weights().tensors.items()}
    assert found["whole"] == whole


@pytest.mark.slow
def test_tied_weights_count_once_on_any_number_of_ranks(found, single):
    one = single["grpo"][0]
    sizes = {each.data_ptr(): each.numel() for each in one.weights().tensors.values()}
    assert len(sizes) < len(one.weights().tensors)
    assert found["parameters"] == one.parameters == sum(sizes.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_only_the_writing_rank_holds_a_checkpoint_in_memory(out: Path, single, name: str):
    first, second = (int((out / f"{name}.{rank}").read_text()) for rank in range(2))
    assert first == gathered_size(single[name][0])
    assert second == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_checkpoint_of_two_ranks_resumes_on_one(folder: Path, out: Path, single, name: str):
    one = make_learner(folder, name)
    one.load(out / name)
    undisturbed, _ = single[name]
    ours, theirs = one.step(items(6, seed=99)), undisturbed.step(items(6, seed=99))
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3, abs=1e-5)
    assert ours.learning_rate == theirs.learning_rate
    assert distance_to(undisturbed, one.weights().tensors) < 2e-2


@pytest.mark.slow
def test_two_ranks_resume_from_a_checkpoint_like_one(folder: Path, out: Path, found):
    one = make_learner(folder, "grpo")
    one.load(out / "grpo")
    assert found["after"] == pytest.approx(one.step(items(6, seed=99)).loss, rel=1e-4)


RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["plimsoll.training.learner.distributed"])


@pytest.mark.parametrize(
    ("fault", "exit_codes", "messages"),
    [
        ("the first rank is killed", (3, 1), ("", "onnection")),
        (
            "the first rank fails in a step",
            (1, 1),
            ("lost their connection: no memory", "onnection"),
        ),
        ("the first rank saves after a failed step", (1, 1), ("out of sync", "onnection")),
        (
            "the first rank fails to gather a checkpoint",
            (1, 1),
            ("lost their connection", "onnection"),
        ),
        ("the second rank never begins", (1, 3), ("onnection", "")),
        ("the second rank ends in a step", (1, 3), ("lost their connection", "")),
        ("a sample is invalid", (1, 0), ("has token id 100000", "")),
    ],
)
def test_no_rank_waits_for_a_dead_one(
    folder: Path, tmp_path: Path, fault: str, exit_codes: tuple[int, int], messages: tuple[str, str]
):
    """The ranks run without torchrun, which would end the other rank."""
    files = [tmp_path / "0", tmp_path / "1"]
    with held_port() as port:
        ranks = [
            RANKS.Process(target=run_with_fault, args=(folder, fault, rank, port, files[rank]))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(110)
    found = tuple(rank.exitcode for rank in ranks)
    for rank in ranks:
        rank.kill()
    assert found == exit_codes
    for file, expected in zip(files, messages, strict=True):
        assert not expected or expected in file.read_text()
