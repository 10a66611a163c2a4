"""Failed writes of checkpoints."""

from pathlib import Path

import pytest
import torch
from loop_parts import CountingLearner

from plimsoll.training.loop import Checkpointer


def make_checkpointer(error: Exception) -> Checkpointer:
    def fail(_: int) -> None:
        raise error

    return Checkpointer(CountingLearner(save=fail), every=1, last=None, saved=None)


def test_out_of_memory_is_not_reported_as_a_full_disk(tmp_path: Path):
    out_of_memory = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError):
        make_checkpointer(out_of_memory).save(tmp_path)
    full_disk = RuntimeError("[enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0")
    with pytest.raises(OSError, match="unexpected pos"):
        make_checkpointer(full_disk).save(tmp_path)
