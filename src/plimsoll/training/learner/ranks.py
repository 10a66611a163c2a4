"""Ranks: several processes that train one model with torch.distributed.

`torchrun` starts the ranks and sets their environment variables. Each rank holds a shard of the
weights (FSDP2) and trains on a share of every batch. The gradients equal those of one process.
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

_STEP_TIMEOUT = timedelta(minutes=10)
"""For a rank that waits for another inside a step."""
_BATCH_TIMEOUT = timedelta(days=1)
"""For a rank that waits for the next command of the first one."""


@dataclass(frozen=True, slots=True)
class World:
    """The position of this process among all ranks."""

    rank: int
    size: int
    local_rank: int
    """Among the ranks of this host: the GPU to use."""


def world() -> World:
    """Read from the environment; a single process is rank 0 of 1."""
    given = os.environ
    return World(
        rank=int(given.get("RANK", "0")),
        size=int(given.get("WORLD_SIZE", "1")),
        local_rank=int(given.get("LOCAL_RANK", "0")),
    )


def init(device: torch.device) -> World:
    """Join the process group, if there are other ranks and it was not joined before."""
    here = world()
    if here.size > 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_STEP_TIMEOUT)
    return here


class CommandChannel:
    """Broadcasts commands of the first rank to the others, which wait as long as a batch takes.

    If the first rank exits without a command, waiting raises a `RuntimeError`.
    """

    def __init__(self) -> None:
        self._group = None
        if dist.is_initialized():
            # The barrier notices a dead rank early: making a group waits for its long timeout.
            barrier()
            self._group = new_group(_BATCH_TIMEOUT)

    def broadcast(self, command: object) -> object:
        """The command of the first rank. Collective; other ranks pass None."""
        return command if self._group is None else broadcast(command, self._group)


def leave() -> None:
    """Leave the process group. Ranks that still wait for this one get an error."""
    if dist.is_initialized():
        dist.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """The device of this rank: each rank of a host has its own GPU."""
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
    """Shard the weights over the ranks. Each of `parts` is gathered only while it is used."""
    if not dist.is_initialized():
        return
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank. Collective for a sharded tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_on_first(tensor: Tensor) -> Tensor:
    """The whole tensor on the first rank, an empty one on others. Collective.

    Gathered tensors move to host memory: a whole model with its moments does not fit on a GPU
    beside that GPU's shard.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    gathered = tensor.full_tensor()
    return gathered.new_empty(0) if world().rank else gathered.cpu()


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a whole tensor, placed like another tensor."""
    if isinstance(like, DTensor):
        # Every rank has the whole tensor: no communication needed.
        return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return tensor
