"""The saved state of a learner: a Hugging Face folder with the file learner.pt.

learner.pt holds the moments of the optimizers, the critic, and the progress of the learner.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.training.learner.networks import Networks
from plimsoll.training.learner.ranks import full_tensor, gather_on_first, sharded_like
from plimsoll.training.models import copy_rest, load_model, quietly

__all__ = ["Gathered", "Progress", "gather", "load", "tensors_of", "write"]

_STATE = "learner.pt"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a learner."""

    steps: int
    bad_steps: int
    generator: Tensor
    """The state of the random generator."""


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The content of a checkpoint, on the first rank, which writes it."""

    weights: dict[str, Tensor]
    state: dict[str, object]


def tensors_of(
    module: nn.Module, gather_tensor: Callable[[Tensor], Tensor] = full_tensor
) -> dict[str, Tensor]:
    """The whole tensors of a module by name. Collective."""
    state = cast(Mapping[str, Tensor], module.state_dict())
    return {name: gather_tensor(tensor) for name, tensor in state.items()}


def gather(networks: Networks, progress: Progress) -> Gathered:
    """Gather the state from all ranks. Collective."""
    weights = tensors_of(networks.policy.model, gather_on_first)
    state: dict[str, object] = {
        "steps": progress.steps,
        "bad_steps": progress.bad_steps,
        "generator": progress.generator,
        "optimizer": networks.optimizer.state(),
    }
    if networks.critic is not None and networks.critic_optimizer is not None:
        state["critic"] = tensors_of(networks.critic, gather_on_first)
        state["critic_optimizer"] = networks.critic_optimizer.state()
    return Gathered(weights, state)


def write(gathered: Gathered, networks: Networks, base: Path, folder: Path) -> None:
    """Write the folder, on the first rank only. Raises the errors of its writers."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_model(networks.policy.model, gathered.weights, folder)
    copy_rest(base, folder)
    torch.save(gathered.state, folder / _STATE)


def _write_model(model: PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    # The model's sampling defaults are copied as files: transformers reads some combinations, such
    # as a temperature without `do_sample`, but refuses to write them.
    model.generation_config = cast(Any, GenerationConfig).from_model_config(model.config)
    with quietly():
        cast(Any, model).save_pretrained(folder, state_dict=weights)


def load(networks: Networks, folder: Path) -> Progress:
    """Load a folder of `write` into the networks; each rank takes its shard."""
    state = _read(folder / _STATE)
    weights = load_model(folder, device="cpu", dtype="float32").state_dict()
    _check_shapes(networks.policy.model, weights, folder)
    _fill(networks.policy.model, weights)
    networks.optimizer.load(state["optimizer"])
    if networks.critic is not None and networks.critic_optimizer is not None:
        if "critic" not in state:
            raise TrainingError(f"{folder} has no critic: it is from a run without ppo")
        _fill(networks.critic, state["critic"])
        networks.critic_optimizer.load(state["critic_optimizer"])
    return Progress(state["steps"], state["bad_steps"], state["generator"])


def _check_shapes(module: nn.Module, state: Mapping[str, Tensor], folder: Path) -> None:
    own = cast(Mapping[str, Tensor], module.state_dict())
    for name in own.keys() | state.keys():
        here, there = (tensors.get(name) for tensors in (own, state))
        if here is None or there is None or here.shape != there.shape:
            raise UsageError(
                f"the checkpoint {folder} does not fit the model of [training] model: they "
                f"differ in {name}. Set the model that the run started with"
            )


def _read(file: Path) -> dict[str, Any]:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
        first = str(error).partition("\n")[0]
        raise TrainingError(
            f"{file} cannot be read ({first}): resume from another checkpoint"
        ) from error


@torch.no_grad()
def _fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, own in cast(Mapping[str, Tensor], module.state_dict()).items():
        own.copy_(sharded_like(state[name].to(own.device), own))
