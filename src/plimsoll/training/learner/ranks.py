"""Several processes that train one model: torch's own distributed layer.

`torchrun` starts the ranks and says so in the environment. Each has a share of the weights
(FSDP2) and takes a share of every batch; gradients are as one process would have them.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from plimsoll.training.learner.torch_calls import (
    all_reduce,
    barrier,
    broadcast,
    new_group,
)

__all__ = [
    "CommandChannel",
    "World",
    "full_tensor",
    "gather_on_first",
    "init",
    "leave",
    "maximum_of",
    "own_device",
    "shard",
    "sharded_like",
    "sum_of",
    "world",
]

_MEETING = timedelta(minutes=10)
"""How long a rank waits for another inside a step."""
_PATIENCE = timedelta(days=1)
"""How long a rank waits for the first one to have a batch."""


@dataclass(frozen=True, slots=True)
class World:
    """Who this process is among those that train together."""

    rank: int
    size: int
    local_rank: int
    """Among those of its host: the GPU that it takes."""


def world() -> World:
    """From the environment; one process alone is rank 0 of 1."""
    given = os.environ
    return World(
        rank=int(given.get("RANK", "0")),
        size=int(given.get("WORLD_SIZE", "1")),
        local_rank=int(given.get("LOCAL_RANK", "0")),
    )


def init(device: torch.device) -> World:
    """Meets the other ranks, where there are any and they have not met."""
    here = world()
    if here.size > 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_MEETING)
    return here


class CommandChannel:
    """Carries what the first rank says to the others, who wait for it as long as a batch takes.

    Where the first rank ends without a word, so does their wait, with a RuntimeError.
    """

    def __init__(self) -> None:
        self._group = None
        if dist.is_initialized():
            # Making the group has its patience, too: a rank that is gone is noticed before.
            barrier()
            self._group = new_group(_PATIENCE)

    def broadcast(self, said: object) -> object:
        """What the first rank says. Every rank has to call it."""
        return said if self._group is None else broadcast(said, self._group)


def leave() -> None:
    """Parts from the other ranks. Those who still wait for this one get an error."""
    if dist.is_initialized():
        dist.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """Where several ranks are on a host with GPUs, each takes its own."""
    if device.type == "cuda" and world().size > 1:
        device = torch.device("cuda", world().local_rank)
        torch.cuda.set_device(device)
    return device


def sum_of(values: Tensor) -> Tensor:
    """The sum over all ranks, in place."""
    if dist.is_initialized():
        all_reduce(values, dist.ReduceOp.SUM)
    return values


def maximum_of(values: Tensor) -> Tensor:
    """The largest over all ranks, in place."""
    if dist.is_initialized():
        all_reduce(values, dist.ReduceOp.MAX)
    return values


def shard(module: nn.Module, parts: Iterable[nn.Module], device: torch.device) -> None:
    """Leaves each rank its share of the weights; `parts` are whole only while they are used."""
    if not dist.is_initialized():
        return
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of it, of whichever shares it is. Every rank has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_on_first(tensor: Tensor) -> Tensor:
    """All of it on the first rank, on others nothing. Every rank has to ask.

    What was gathered goes to the host's memory: all of a model and its moments, tensor by tensor,
    is more than a GPU holds beside its share.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    gathered = tensor.full_tensor()
    return gathered.new_empty(0) if world().rank else gathered.cpu()


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's share of a whole tensor, laid out as another."""
    if isinstance(like, DTensor):
        # Every rank has the whole, so that none has to be told.
        return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return tensor
