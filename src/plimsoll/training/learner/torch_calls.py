"""Typed doors to what torch leaves untyped."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
import torch.utils.checkpoint as recomputing
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = [
    "Score",
    "all_reduce",
    "backward",
    "barrier",
    "broadcast",
    "new_group",
    "numbers",
    "recompute_forward",
    "recomputed",
    "split",
    "step",
]

Score = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]]


def backward(loss: Tensor) -> None:
    """Adds to the gradients."""
    cast(Any, loss).backward()


def numbers(values: Tensor) -> list[Any]:
    return cast(Any, values).tolist()


def split(values: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Parts of at most so many rows; of no rows there is one part."""
    return cast(Any, values).split(rows)


def step(optimizer: Optimizer) -> None:
    cast(Any, optimizer).step()


def all_reduce(values: Tensor, how: dist.ReduceOp.RedOpType) -> None:
    """Over all ranks, in place."""
    cast(Any, dist).all_reduce(values, how)


def barrier() -> None:
    """Returns when every rank has come here."""
    cast(Any, dist).barrier()


def new_group(timeout: timedelta) -> dist.ProcessGroup:
    """All ranks once more, on the CPU, with a patience of their own."""
    return cast(Any, dist).new_group(backend="gloo", timeout=timeout)


def broadcast(said: object, group: dist.ProcessGroup) -> object:
    """What the first rank says, on every rank."""
    told = [said]
    cast(Any, dist).broadcast_object_list(told, src=0, group=group)
    return told[0]


def recomputed(score: Score) -> Score:
    """The same, which keeps nothing for the gradient but its inputs, and runs twice for it."""

    def scored(hidden: Tensor, targets: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
        return cast(Any, recomputing).checkpoint(
            score, hidden, targets, flag, use_reentrant=False, preserve_rng_state=False
        )

    return scored


def recompute_forward(module: nn.Module) -> None:
    """Has a module keep nothing for the gradient but its inputs, and run twice for it."""
    once = module.forward

    def twice(*args: object, **named: object) -> object:
        return cast(Any, recomputing).checkpoint(
            once, *args, use_reentrant=False, preserve_rng_state=False, **named
        )

    module.forward = twice
