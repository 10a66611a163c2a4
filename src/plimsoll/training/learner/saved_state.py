"""What a learner leaves behind: a Hugging Face folder, and what it needs to go on.

learner.pt holds the moments of the optimizers, the critic, and where the learner was.
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
    """Where a learner is."""

    steps: int
    bad_steps: int
    generator: Tensor
    """The state of what draws lots."""


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """What a checkpoint consists of: all of it on the first rank, which writes it."""

    weights: dict[str, Tensor]
    state: dict[str, object]


def tensors_of(
    module: nn.Module, found: Callable[[Tensor], Tensor] = full_tensor
) -> dict[str, Tensor]:
    """All that a module consists of, whole. Every rank has to ask."""
    state = cast(Mapping[str, Tensor], module.state_dict())
    return {name: found(tensor) for name, tensor in state.items()}


def gather(nets: Networks, progress: Progress) -> Gathered:
    """From all ranks. Every one of them has to ask."""
    weights = tensors_of(nets.policy.model, gather_on_first)
    state: dict[str, object] = {
        "steps": progress.steps,
        "bad_steps": progress.bad_steps,
        "generator": progress.generator,
        "optimizer": nets.optimizer.state(),
    }
    if nets.critic is not None and nets.critic_optimizer is not None:
        state["critic"] = tensors_of(nets.critic, gather_on_first)
        state["critic_optimizer"] = nets.critic_optimizer.state()
    return Gathered(weights, state)


def write(gathered: Gathered, nets: Networks, base: Path, folder: Path) -> None:
    """For the first rank alone. Raises what its writers raise."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_model(nets.policy.model, gathered.weights, folder)
    copy_rest(base, folder)
    torch.save(gathered.state, folder / _STATE)


def _write_model(model: PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    # The model's own defaults of sampling are copied as they are: some that can be read, such as
    # a temperature without `do_sample`, transformers refuses to write.
    model.generation_config = cast(Any, GenerationConfig).from_model_config(model.config)
    with quietly():
        cast(Any, model).save_pretrained(folder, state_dict=weights)


def load(nets: Networks, folder: Path) -> Progress:
    """Puts what `write` wrote into the networks, on every rank its share."""
    state = _read(folder / _STATE)
    weights = load_model(folder, device="cpu", dtype="float32").state_dict()
    _check_shapes(nets.policy.model, weights, folder)
    _fill(nets.policy.model, weights)
    nets.optimizer.load(state["optimizer"])
    if nets.critic is not None and nets.critic_optimizer is not None:
        if "critic" not in state:
            raise TrainingError(f"{folder} has no critic: it is not from a run with ppo")
        _fill(nets.critic, state["critic"])
        nets.critic_optimizer.load(state["critic_optimizer"])
    return Progress(state["steps"], state["bad_steps"], state["generator"])


def _check_shapes(module: nn.Module, state: Mapping[str, Tensor], folder: Path) -> None:
    own = cast(Mapping[str, Tensor], module.state_dict())
    for name in own.keys() | state.keys():
        here, there = (tensors.get(name) for tensors in (own, state))
        if here is None or there is None or here.shape != there.shape:
            raise UsageError(
                f"the checkpoint {folder} is not of the model that [training] model names: they "
                f"differ in {name}. Name the model that the run began with"
            )


def _read(file: Path) -> dict[str, Any]:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
        first = str(error).partition("\n")[0]
        raise TrainingError(
            f"{file} cannot be read ({first}): go on from another checkpoint"
        ) from error


@torch.no_grad()
def _fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, own in cast(Mapping[str, Tensor], module.state_dict()).items():
        own.copy_(sharded_like(state[name].to(own.device), own))
