"""Learners, random samples for them, and the distance of their weights."""

import math
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plimsoll.config.training import TrainingConfig
from plimsoll.training.learner.learner import Learner
from plimsoll.training.learner.ranks import world
from plimsoll.training.samples import TrainingSample

__all__ = ["config", "distance", "flat", "item", "items", "make_learner", "save", "tokens"]

# These models are so small that synchronizing threads takes longer than computing.
torch.set_num_threads(1)

TOKEN_IDS = 100
"""Samples have token ids below this, which every model of these tests has."""


def config(**values: Any) -> TrainingConfig:
    return TrainingConfig(policy="torch", device="cpu", **{"dtype": "float32", **values})


def make_learner(folder: Path, **values: Any) -> Learner:
    return Learner(config(**{"learning_rate": 1e-4, **values}), folder, steps=20)


def flat(learner: Learner) -> Tensor:
    """A copy of all weights as one vector."""
    return torch.cat([each.flatten() for each in learner.weights().tensors.values()]).clone()


def distance(some: Tensor, others: Tensor) -> float:
    """The distance of weights, relative to that of one step with the learning rate 1e-4.

    The largest difference would not do: the first step of Adam follows the sign of a gradient,
    however small the gradient is.
    """
    return float((some - others).norm() / (1e-4 * math.sqrt(len(some))))


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
    """Samples of several turns and various lengths. Every fourth has the advantage 0."""
    rng = random.Random(seed)
    samples: list[TrainingSample] = []
    for number in range(count):
        length = rng.randint(8, longest)
        mask = [0, 0, 0] + [int(rng.random() < 0.6) for _ in range(length - 4)] + [1]
        samples.append(
            item(
                [rng.randrange(TOKEN_IDS) for _ in range(length)],
                mask,
                logprobs=[rng.uniform(-6, -3) if each else 0.0 for each in mask],
                advantage=0.0 if number % 4 == 3 else rng.uniform(-1.5, 1.5),
                reward=rng.random(),
                ticket=f"task-{number // 4}.{number % 4}",
            )
        )
    return samples


def tokens(samples: Sequence[TrainingSample]) -> int:
    return sum(sum(each.mask[1:]) for each in samples)


def save(learner: Learner, folder: Path) -> None:
    """Write a checkpoint. Collective."""
    gathered = learner.gather()
    if not world().rank:
        learner.write(gathered, folder)
