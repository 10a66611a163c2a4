"""Random samples for a learner."""

import random
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from plimsoll.config.training import TrainingConfig
from plimsoll.training.samples import TrainingSample

__all__ = ["config", "item", "items", "tokens"]

# What these models compute takes less time than threads need to meet.
torch.set_num_threads(1)

WORDS = 100
"""Token ids that every model of these tests knows."""


def config(**values: Any) -> TrainingConfig:
    return TrainingConfig(policy="torch", device="cpu", **{"dtype": "float32", **values})


def item(
    ids: Sequence[int],
    mask: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    advantage: float = 1.0,
    reward: float = 1.0,
    ticket: str = "a.1",
) -> TrainingSample:
    return TrainingSample(
        ids=array("i", ids),
        mask=bytearray(mask),
        logprobs=array("f", logprobs if logprobs is not None else [-2.0 * each for each in mask]),
        advantage=advantage,
        reward=reward,
        group=ticket.partition(".")[0],
        ticket=ticket,
    )


def items(count: int = 8, *, seed: int = 0, longest: int = 40) -> list[TrainingSample]:
    """Samples of several turns each, of many lengths; every fourth is worth as much as others."""
    lot = random.Random(seed)
    made: list[TrainingSample] = []
    for number in range(count):
        length = lot.randint(8, longest)
        mask = [0, 0, 0] + [int(lot.random() < 0.6) for _ in range(length - 4)] + [1]
        made.append(
            item(
                [lot.randrange(WORDS) for _ in range(length)],
                mask,
                logprobs=[lot.uniform(-6, -3) if each else 0.0 for each in mask],
                advantage=0.0 if number % 4 == 3 else lot.uniform(-1.5, 1.5),
                reward=lot.random(),
                ticket=f"task-{number // 4}.{number % 4}",
            )
        )
    return made


def tokens(samples: Sequence[TrainingSample]) -> int:
    return sum(sum(each.mask[1:]) for each in samples)
