"""Activation checkpointing: less memory, the same result."""

from pathlib import Path

import pytest
import torch
from learner_parts import config, items
from tiny_model import make_model
from torch import Tensor

from plimsoll.training.learner.learner import Learner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def trained(folder: Path, *, recompute: bool, **values: object) -> tuple[Learner, int]:
    """A learner after two steps, and the bytes that it saved for their backward passes."""
    saved: dict[tuple[int, int], int] = {}

    def record(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr(), tensor._version] = tensor.nbytes
        return tensor

    settings = config(learning_rate=1e-3, recompute=recompute).model_copy(update=values)
    learner = Learner(settings, folder, steps=2)
    weights = {tensor.data_ptr() for tensor in learner.weights().tensors.values()}
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        for seed in range(2):
            learner.step(items(8, seed=seed))
    return learner, sum(size for (pointer, _), size in saved.items() if pointer not in weights)


@pytest.mark.parametrize("values", [{}, {"algorithm": "ppo"}, {"dtype": "bfloat16"}])
def test_recomputation_gives_identical_weights_with_less_memory(folder: Path, values: dict):
    with_all, much = trained(folder, recompute=False, **values)
    with_inputs, little = trained(folder, recompute=True, **values)
    others = with_inputs.weights().tensors
    for name, tensor in with_all.weights().tensors.items():
        assert torch.equal(tensor, others[name]), name
    assert little < much / 2
