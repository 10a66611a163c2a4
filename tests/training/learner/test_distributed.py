"""Errors of the first rank of several."""

from pathlib import Path
from typing import Any, cast

import pytest
from learner_parts import items
from tiny_model import make_model

from plimsoll.config.training import TrainingConfig
from plimsoll.core.errors import TrainingError
from plimsoll.training.learner import distributed
from plimsoll.training.learner.distributed import DistributedLearner
from plimsoll.training.learner.learner import Learner
from plimsoll.training.learner.ranks import World


def test_after_any_error_a_rank_does_not_wait_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other ranks are still in the step that failed here, and do not answer."""
    model = make_model(tmp_path / "model")
    config = TrainingConfig(policy="torch", device="cpu", dtype="float32")
    learner = DistributedLearner(Learner(config, model, steps=2))
    monkeypatch.setattr(distributed, "world", lambda: World(0, 2, 0))

    def fail(*_: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(Learner, "_step", cast(Any, fail))
    with pytest.raises(KeyError):
        learner.step(items())
    with pytest.raises(TrainingError, match="out of sync"):
        learner.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
