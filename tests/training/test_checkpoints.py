"""Failed writes of checkpoints."""

from pathlib import Path

import pytest
import torch
from loop_parts import Counter

from plimsoll.training.loop import Checkpointer


def keeper(error: Exception) -> Checkpointer:
    def fail(_: int) -> None:
        raise error

    return Checkpointer(Counter(save=fail), every=1, last=None, saved=None)


def test_out_of_memory_is_not_reported_as_a_full_disk(tmp_path: Path):
    lack = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError):
        keeper(lack).save(tmp_path)
    full = RuntimeError("[enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0")
    with pytest.raises(OSError, match="unexpected pos"):
        keeper(full).save(tmp_path)
