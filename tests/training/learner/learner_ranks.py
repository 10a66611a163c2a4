"""The program of a rank: `torchrun learner_ranks.py MODEL OUT`; and ranks that fail."""

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

from learner_parts import config, items, save
from torch import Tensor

from plimsoll.core.errors import TrainingError
from plimsoll.training.learner.distributed import DistributedLearner, execute_commands
from plimsoll.training.learner.learner import Learner
from plimsoll.training.learner.ranks import world

__all__ = ["BATCHES", "VARIANTS", "gathered_size", "make_learner", "run_with_fault", "train"]

VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "small": {"micro_tokens": 50, "entropy": 0.01, "recompute": True},
    "gspo": {"algorithm": "gspo", "averaging": "sequence", "updates": 2, "kl": 0.1},
    "ppo": {"algorithm": "ppo"},
    "pieces": {"entropy": 0.01, "recompute": True},
    "bfloat16": {"dtype": "bfloat16"},
}
BATCHES = (8, 5, 1, 0, 7)
"""Samples of each step. With 1, one rank has none; with 0, both ranks have none."""


def make_learner(folder: Path, name: str) -> Learner:
    learner = Learner(config(learning_rate=1e-4, **VARIANTS[name]), folder, steps=20)
    if name == "pieces":  # computes the logits in chunks, as for a large vocabulary
        learner._networks.policy._rows = 7  # pyright: ignore[reportPrivateUsage]
    return learner


def train(learner: Learner | DistributedLearner) -> list[list[float]]:
    """Loss, norm of the gradient and entropy of each step; -1 if there is none."""
    reports = [learner.step(items(count, seed=step)) for step, count in enumerate(BATCHES)]
    figures = [(each.loss, each.grad_norm, each.entropy) for each in reports]
    return [[-1.0 if one is None else one for one in each] for each in figures]


def gathered_size(learner: Learner) -> int:
    """The number of weights and moments that this rank holds for a checkpoint."""
    checkpoint = learner.gather()
    return _numbers(checkpoint.weights) + _numbers(checkpoint.state)


def _numbers(checkpoint: object) -> int:
    if isinstance(checkpoint, Tensor):
        return checkpoint.numel() if checkpoint.dim() and checkpoint.is_floating_point() else 0
    return sum(map(_numbers, checkpoint.values())) if isinstance(checkpoint, dict) else 0


def train_variants(folder: Path, out: Path) -> None:
    """Train each variant on all ranks, then one in which the first rank commands the others."""
    losses: dict[str, list[list[float]]] = {}
    for name in VARIANTS:
        learner = make_learner(folder, name)
        losses[name] = train(learner)
        save(learner, out / name)
        (out / f"{name}.{world().rank}").write_text(str(gathered_size(learner)))
    learner = make_learner(folder, "grpo")
    if world().rank:
        return execute_commands(learner)
    shared = DistributedLearner(learner)
    losses["shared"] = train(shared)
    shared.save(out / "shared")
    shared.load(out / "grpo")
    whole = {name: list(each.shape) for name, each in shared.weights().tensors.items()}
    after = shared.step(items(6, seed=99)).loss
    found = {"losses": losses, "whole": whole, "after": after, "parameters": shared.parameters}
    shared.close()
    (out / "found.json").write_text(json.dumps(found))
    return None


def run_with_fault(folder: Path, fault: str, rank: int, port: int, report: Path) -> None:
    """Run one of two ranks. One of them fails, and the other has to notice."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        learner = make_learner(folder, "grpo")
        if rank:
            _follow(learner, fault)
        else:
            _lead(learner, fault)
    except BaseException:
        report.write_text(traceback.format_exc())
        raise


def _follow(learner: Learner, fault: str) -> None:
    if fault == "the second rank never begins":
        os._exit(3)
    if fault == "the second rank ends in a step":
        learner.step = lambda _: os._exit(3)
    execute_commands(learner)


def _fail(*_: object) -> NoReturn:
    raise RuntimeError("no memory is left")


def _lead(learner: Learner, fault: str) -> None:
    shared = DistributedLearner(learner)
    try:
        shared.step(items())
        if fault == "the first rank is killed":
            os._exit(3)
        if fault == "the first rank fails in a step":
            learner.step = _fail
            shared.step(items())
        if fault == "the first rank saves after a failed step":
            learner.step = _fail
            with suppress(TrainingError):
                shared.step(items())
            shared.save(Path("nowhere"))
        if fault == "the first rank fails to gather a checkpoint":
            learner.gather = _fail
            shared.save(Path("nowhere"))
        if fault == "a sample is invalid":
            bad = items()
            bad[0].ids[1] = 100_000
            shared.step(bad)
    finally:
        shared.close()


if __name__ == "__main__":
    train_variants(Path(sys.argv[1]), Path(sys.argv[2]))
