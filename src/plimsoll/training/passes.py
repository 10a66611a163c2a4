"""Passes of a batch through a model, in micro-batches that fit into memory."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plimsoll.core.errors import TrainingError
from plimsoll.training.inputs import Inputs, MicroBatch
from plimsoll.training.micro_batches import plan
from plimsoll.training.models import is_out_of_memory
from plimsoll.training.parallel import World, sum_of

__all__ = ["Passes"]

_log = logging.getLogger(__name__)


class Passes:
    """Gives this rank's micro-batches to those who work on them."""

    def __init__(self, micro_tokens: int, here: World) -> None:
        self._limit = micro_tokens
        self._here = here

    @property
    def micro_tokens(self) -> int:
        """The most that go through the model at once: fewer once memory ran out."""
        return self._limit

    def run(
        self,
        inputs: Inputs,
        indexes: Sequence[int],
        work: Callable[[MicroBatch], None],
        clear: Callable[[], None],
    ) -> int:
        """Returns the number of micro-batches. Where memory runs out, all of it begins again,
        from what `clear` leaves, in smaller ones."""
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
        """A value for each trained token of the batch, on every rank; 0 for other rows' tokens."""
        found = torch.zeros(inputs.tokens, device=inputs.device)

        @torch.no_grad()
        def work(batch: MicroBatch) -> None:
            found[batch.places] = score(batch)

        self.run(inputs, indexes, work, clear=lambda: None)
        return sum_of(found)

    def _try(
        self, inputs: Inputs, batches: list[list[int]], work: Callable[[MicroBatch], None]
    ) -> MicroBatch | None:
        """The micro-batch that did not fit."""
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
                "[training] recompute = true where it is not, allow agents a shorter context, take "
                "a smaller model, or train on more GPUs with torchrun"
            )
        if self._here.size > 1:
            # The other ranks are in the middle of the same micro-batch, and wait for this one.
            raise TrainingError(
                f"out of memory: {rows} samples of {width} tokens do not fit on {device}; "
                f"set [training] micro_tokens below {rows * width}"
            )
        self._limit = rows * width // 2
        _log.warning(
            "out of memory with %d tokens at once: going on with micro_tokens = %d",
            rows * width,
            self._limit,
        )
        if device.type == "cuda":
            torch.cuda.empty_cache()
