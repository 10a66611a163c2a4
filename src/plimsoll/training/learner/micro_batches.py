"""Micro-batches: the plan of a batch over ranks and passes, and passes that fit into memory."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plimsoll.core.errors import TrainingError
from plimsoll.training.learner.inputs import Inputs, MicroBatch
from plimsoll.training.learner.ranks import World, sum_of
from plimsoll.training.models import is_out_of_memory

__all__ = ["MicroBatchRunner", "pack", "plan", "share"]


def pack(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Micro-batches of indexes with at most `limit` tokens each, padding included.

    Samples of similar length share one. A sample longer than the limit gets its own.
    """
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batches and width * (len(batches[-1]) + 1) <= limit:
            batches[-1].append(index)
        else:
            batches.append([index])
            width = lengths[index]
    return batches


def share(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indexes for each rank with about equal numbers of tokens: longest first, to the least loaded
    rank."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += lengths[index]
    return shares


def plan(lengths: Sequence[int], limit: int, ranks: int) -> list[list[list[int]]]:
    """The micro-batches of each rank. Every rank has the same number; some may be empty.

    Ranks synchronize in every micro-batch: a rank with fewer would block the others.
    """
    plans: list[list[list[int]]] = []
    for indexes in share(lengths, ranks):
        packed = pack([lengths[index] for index in indexes], limit)
        plans.append([[indexes[at] for at in batch] for batch in packed])
    most = max(len(batches) for batches in plans)
    return [batches + [[] for _ in range(most - len(batches))] for batches in plans]


_log = logging.getLogger(__name__)


class MicroBatchRunner:
    """Runs passes over this rank's micro-batches. Retries with smaller ones if memory runs out."""

    def __init__(self, micro_tokens: int, here: World) -> None:
        self._limit = micro_tokens
        self._here = here

    @property
    def micro_tokens(self) -> int:
        """The limit of tokens in one micro-batch; reduced after an out-of-memory error."""
        return self._limit

    def run(
        self,
        inputs: Inputs,
        indexes: Sequence[int],
        work: Callable[[MicroBatch], None],
        clear: Callable[[], None],
    ) -> int:
        """Call `work` for each micro-batch and return their number. If memory runs out, call
        `clear` and start over with smaller micro-batches."""
        while True:
            clear()
            batches = plan(inputs.lengths(indexes), self._limit, self._here.size)[self._here.rank]
            failed = self._try(inputs, [[indexes[at] for at in each] for each in batches], work)
            if failed is None:
                return len(batches)
            clear()
            self._shrink(failed, inputs.device)

    def scores(
        self, inputs: Inputs, indexes: Sequence[int], score: Callable[[MicroBatch], Tensor]
    ) -> Tensor:
        """One value for each trained token of the batch, on every rank; 0 for rows not in
        `indexes`."""
        found = torch.zeros(inputs.tokens, device=inputs.device)

        @torch.no_grad()
        def work(batch: MicroBatch) -> None:
            found[batch.offsets] = score(batch)

        self.run(inputs, indexes, work, clear=lambda: None)
        return sum_of(found)

    def _try(
        self, inputs: Inputs, batches: list[list[int]], work: Callable[[MicroBatch], None]
    ) -> MicroBatch | None:
        """Work on all micro-batches. Returns the one that did not fit into memory, if any."""
        for indexes in batches:
            batch = inputs.micro_batch(indexes)
            try:
                work(batch)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return batch
        return None

    def _shrink(self, failed: MicroBatch, device: torch.device) -> None:
        rows, width = failed.ids.shape
        if rows == 1:
            raise TrainingError(
                f"out of memory: a sample of {width} tokens does not fit on {device}. Set "
                "[training] recompute = true, allow agents a shorter context, use a smaller "
                "model, or train on more GPUs with torchrun"
            )
        if self._here.size > 1:
            # The other ranks are in the middle of the same micro-batch and wait for this one.
            raise TrainingError(
                f"out of memory: {rows} samples of {width} tokens do not fit on {device}; "
                f"set [training] micro_tokens below {rows * width}"
            )
        self._limit = rows * width // 2
        _log.warning(
            "out of memory with a micro-batch of %d tokens: continuing with micro_tokens = %d",
            rows * width,
            self._limit,
        )
        if device.type == "cuda":
            torch.cuda.empty_cache()
