"""A rank in tests: `torchrun learner_ranks.py MODEL OUT`, or a scene with a fault."""

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

from learner_parts import config, items
from torch import Tensor

from plimsoll.core.errors import TrainingError
from plimsoll.training.learner.distributed import DistributedLearner, execute_commands
from plimsoll.training.learner.learner import Learner
from plimsoll.training.learner.ranks import world

__all__ = ["BATCHES", "VARIANTS", "gathered", "learner", "train", "trouble"]

VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "small": {"micro_tokens": 50, "entropy": 0.01, "recompute": True},
    "gspo": {"algorithm": "gspo", "averaging": "sequence", "updates": 2, "kl": 0.1},
    "ppo": {"algorithm": "ppo"},
    "pieces": {"entropy": 0.01, "recompute": True},
    "bfloat16": {"dtype": "bfloat16"},
}
BATCHES = (8, 5, 1, 0, 7)
"""How many samples there are in each step: of one, a rank has none, and of 0 both."""


def learner(folder: Path, name: str) -> Learner:
    made = Learner(config(learning_rate=1e-4, **VARIANTS[name]), folder, steps=20)
    if name == "pieces":  # of logits, as every vocabulary needs them that is not a test's
        made._networks.policy._rows = 7  # pyright: ignore[reportPrivateUsage]
    return made


def train(made: Learner | DistributedLearner) -> list[list[float]]:
    """Loss, norm of the gradient and entropy of each step; -1 where there was nothing."""
    reports = [made.step(items(count, seed=step)) for step, count in enumerate(BATCHES)]
    figures = [(each.loss, each.grad_norm, each.entropy) for each in reports]
    return [[-1.0 if one is None else one for one in each] for each in figures]


def gathered(made: Learner) -> int:
    """How many weights and moments this rank has for a checkpoint."""
    kept = made.gather()
    return _numbers(kept.weights) + _numbers(kept.state)


def _numbers(kept: object) -> int:
    if isinstance(kept, Tensor):
        return kept.numel() if kept.dim() and kept.is_floating_point() else 0
    return sum(map(_numbers, kept.values())) if isinstance(kept, dict) else 0


def together(folder: Path, out: Path) -> None:
    """Each variant on all ranks, then one that the first rank alone is told of."""
    losses: dict[str, list[list[float]]] = {}
    for name in VARIANTS:
        made = learner(folder, name)
        losses[name] = train(made)
        made.save(out / name)
        (out / f"{name}.{world().rank}").write_text(str(gathered(made)))
    made = learner(folder, "grpo")
    if world().rank:
        return execute_commands(made)
    shared = DistributedLearner(made)
    losses["shared"] = train(shared)
    shared.save(out / "shared")
    shared.load(out / "grpo")
    whole = {name: list(each.shape) for name, each in shared.weights().tensors.items()}
    after = shared.step(items(6, seed=99)).loss
    found = {"losses": losses, "whole": whole, "after": after, "parameters": shared.parameters}
    shared.close()
    (out / "found.json").write_text(json.dumps(found))
    return None


def trouble(folder: Path, scene: str, rank: int, port: int, said: Path) -> None:
    """One of two ranks, one of which gets into trouble that the other has to notice."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        made = learner(folder, "grpo")
        if rank:
            _follow(made, scene)
        else:
            _lead(made, scene)
    except BaseException:
        said.write_text(traceback.format_exc())
        raise


def _follow(made: Learner, scene: str) -> None:
    if scene == "a follower never begins":
        os._exit(3)
    if scene == "a follower ends in a step":
        made.step = lambda _: os._exit(3)
    execute_commands(made)


def _fail(*_: object) -> NoReturn:
    raise RuntimeError("no memory is left")


def _lead(made: Learner, scene: str) -> None:
    shared = DistributedLearner(made)
    try:
        shared.step(items())
        if scene == "the first is killed":
            os._exit(3)
        if scene == "the first fails in a step":
            made.step = _fail
            shared.step(items())
        if scene == "the first is to save after a step that failed":
            made.step = _fail
            with suppress(TrainingError):
                shared.step(items())
            shared.save(Path("nowhere"))
        if scene == "the first fails to gather a checkpoint":
            made.gather = _fail
            shared.save(Path("nowhere"))
        if scene == "a sample is bad":
            bad = items()
            bad[0].ids[1] = 100_000
            shared.step(bad)
    finally:
        shared.close()


if __name__ == "__main__":
    together(Path(sys.argv[1]), Path(sys.argv[2]))
