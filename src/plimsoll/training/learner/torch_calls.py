"""Typed wrappers around torch functions without type annotations."""

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
    """Add to the gradients."""
    cast(Any, loss).backward()


def numbers(values: Tensor) -> list[Any]:
    return cast(Any, values).tolist()


def split(values: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Parts of at most `rows` rows; an empty tensor has one part."""
    return cast(Any, values).split(rows)


def step(optimizer: Optimizer) -> None:
    cast(Any, optimizer).step()


def all_reduce(values: Tensor, how: dist.ReduceOp.RedOpType) -> None:
    """Reduce over all ranks, in place."""
    cast(Any, dist).all_reduce(values, how)


def barrier() -> None:
    """Wait until every rank calls it."""
    cast(Any, dist).barrier()


def new_group(timeout: timedelta) -> dist.ProcessGroup:
    """A second group of all ranks, on the CPU, with its own timeout."""
    return cast(Any, dist).new_group(backend="gloo", timeout=timeout)


def broadcast(value: object, group: dist.ProcessGroup) -> object:
    """The value of the first rank, on every rank."""
    values = [value]
    cast(Any, dist).broadcast_object_list(values, src=0, group=group)
    return values[0]


def recomputed(score: Score) -> Score:
    """The function with activation checkpointing: it keeps only its inputs and runs twice."""

    def scored(hidden: Tensor, targets: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
        return cast(Any, recomputing).checkpoint(
            score, hidden, targets, flag, use_reentrant=False, preserve_rng_state=False
        )

    return scored


def recompute_forward(module: nn.Module) -> None:
    """Enable activation checkpointing of a module: it keeps only its inputs and runs twice."""
    once = module.forward

    def twice(*args: object, **named: object) -> object:
        return cast(Any, recomputing).checkpoint(
            once, *args, use_reentrant=False, preserve_rng_state=False, **named
        )

    module.forward = twice
