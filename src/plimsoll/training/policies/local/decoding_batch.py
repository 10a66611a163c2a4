"""Continuous batching: rows join and leave the batch between any two tokens.

Each row has a cache slot. Rows that decode have the first slots, so that a step reads them without
copying. Behind them are rows whose prompts are still being prefilled, and finished rows, which
stay as prefixes for later prompts.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from plimsoll.core.versions import Version
from plimsoll.training.models import is_out_of_memory
from plimsoll.training.policies.local.kv_cache import CachedModel, KVCache
from plimsoll.training.policies.local.sampling import (
    BatchSampling,
    GenerationParams,
    batch_sampling,
    sample,
)

__all__ = ["DecodingBatch", "Finish", "Row", "Tokens"]

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of an answer, for its consumer."""

    ids: list[int]
    logprobs: list[float]
    versions: list[tuple[Version, int]]
    """Versions with the number of tokens each generated, in order."""
    finish: Finish | None


@dataclass(slots=True, eq=False)
class Row:
    """A prompt, its answer so far, and the position of its keys and values in the cache."""

    ids: list[int]
    """The prompt and the answer so far."""
    prompt: int
    """The length of the prompt."""
    limit: int
    """The maximum of prompt and answer together."""
    sampling: GenerationParams
    seed: int | None
    """The seed of its sampling; None until the generator chooses one."""
    streamed: bool = False
    """Whether each token is delivered at once, or all at the end."""
    finish: Finish | None = None
    failure: str = ""
    """The reason why it cannot continue; empty if it can."""
    cache_slot: int = -1
    stored: int = 0
    """The number of tokens with keys and values in the cache."""
    leader: "Row | None" = None
    """Another row that is computing a prefix of this one."""
    shared: int = 0
    """The length of the prefix shared with the leader."""
    used: int = 0
    """The time of its last use; the least recently used row is evicted."""
    _logprobs: list[float] = field(default_factory=list[float])
    _versions: list[Version] = field(default_factory=list[Version])
    _delivered: int = 0

    @property
    def ready(self) -> bool:
        """Whether all tokens but the last are stored, so that the next one can be sampled."""
        return self.stored >= len(self.ids) - 1

    def append(self, token: int, logprob: float, version: Version, ends: frozenset[int]) -> None:
        """Add a sampled token."""
        self.ids.append(token)
        self.stored += 1
        self._logprobs.append(logprob)
        self._versions.append(version)
        if token in ends:
            self.finish = "stop"
        elif len(self.ids) >= self.limit:
            self.finish = "length"

    def take_new(self) -> Tokens:
        """The tokens that were not delivered yet."""
        since, self._delivered = self._delivered, len(self._logprobs)
        runs = groupby(self._versions[since:])
        return Tokens(
            ids=self.ids[self.prompt + since :],
            logprobs=self._logprobs[since:],
            versions=[(version, len(list(run))) for version, run in runs],
            finish=self.finish,
        )


def common_length(one: Sequence[int], other: Sequence[int], above: int = 0) -> int:
    """The length of the common prefix; 0 if it is not longer than `above`."""
    if one[: above + 1] != other[: above + 1]:
        return 0
    low, high = above + 1, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return min(low, high)


CHUNK = 512
"""Prompt tokens prefilled between two steps, so that a long prompt does not block the others."""
MIN_SHARED = 8
"""The shortest prefix for which copying is cheaper than computing."""
NOT_FINITE = "the model's probabilities are not finite: its weights are broken"


class _DecodingState:
    """Tensors of the decoding rows, reused from step to step while the rows stay the same."""

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        lengths = [len(row.ids) for row in rows]
        self.longest = max(lengths)
        self.lengths = torch.tensor(lengths, device=device)
        self.tokens = torch.tensor([row.ids[-1] for row in rows], device=device)
        self.batch_sampling: BatchSampling = batch_sampling(
            [row.sampling for row in rows], [row.seed or 0 for row in rows], device
        )

    def advance(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.lengths = self.lengths + 1
        self.longest += 1


class DecodingBatch:
    """The rows of one model. Not thread-safe."""

    def __init__(
        self, model: PreTrainedModel, version: Version, *, ends: frozenset[int], max_rows: int
    ) -> None:
        self.version = version
        self.max_rows = max_rows
        """The limit of rows, including finished ones in the cache."""
        self.at_work: Sequence[Row] = ()
        """The rows of the current pass, or of the one that failed."""
        self._model = model
        self._cached_model = CachedModel(model)
        self._cached_model.check()
        self._ends = ends
        self._cache = KVCache()
        self._slots: list[Row | None] = []
        self._decoding = 0
        """The number of decoding rows."""
        self._joining: deque[Row] = deque()
        self._state: _DecodingState | None = None
        self._clock = count(1)

    @property
    def rows(self) -> list[Row]:
        """All rows in progress."""
        decoding = [row for row in self._slots[: self._decoding] if row is not None]
        return [*decoding, *self._joining]

    def __len__(self) -> int:
        return self._decoding + len(self._joining)

    def join(self, row: Row) -> None:
        """Add a row. Its prompt is prefilled, or copied from a row with the same prefix."""
        best, shared = None, MIN_SHARED - 1
        prompt = row.ids[:-1]
        for other in self._slots:
            if other is not None:
                length = common_length(prompt, self._offered(other), shared)
                if length > shared:
                    best, shared = other, length
        row.leader, row.shared = best, shared
        if best is not None and self._is_idle(best) and shared == best.stored:
            self._put(row, best.cache_slot)
            row.stored, row.leader = shared, None
        else:
            self._put(row, self._free_slot())
            row.stored = 0
        row.used = next(self._clock)
        self._joining.append(row)

    def leave(self, row: Row) -> None:
        """Remove a finished or aborted row. Its cache content stays until the slot is needed."""
        if row in self._joining:
            self._joining.remove(row)
        elif 0 <= row.cache_slot < self._decoding and self._slots[row.cache_slot] is row:
            self._stop_decoding(row)
        row.leader = None
        row.used = next(self._clock)

    def step(self) -> list[Row]:
        """Prefill a chunk of the prompts, then sample a token for each ready row.

        Returns the rows that got a token or failed.
        """
        self._prefill_prompts()
        return self._decode() if self._decoding else []

    def set_weights(self, tensors: Mapping[str, Tensor] | None, version: Version) -> None:
        """Load new weights. Drops the cache of the old ones, but no token."""
        if tensors is not None:
            state = self._model.state_dict()
            with torch.no_grad():
                for name, tensor in tensors.items():
                    state[name].copy_(tensor)
            self.drop_cache()
        self.version = version

    def drop_cache(self, *, but: Row | None = None) -> None:
        """Drop the cache. All rows in progress join again, except `but`, which is finished."""
        rows = [row for row in self.rows if row is not but]
        self._cache.drop()
        self._slots.clear()
        self._joining.clear()
        self._decoding = 0
        self._state = None
        for row in sorted(rows, key=lambda row: row.used):
            self.join(row)

    def _stop_decoding(self, row: Row) -> None:
        try:
            self._exchange(row.cache_slot, self._decoding - 1)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Not enough memory to move another row into its slot: all others join again.
            self.drop_cache(but=row)
        else:
            self._decoding -= 1
            self._state = None

    def _offered(self, row: Row) -> list[int]:
        """The tokens of a row that are or will be in the cache."""
        return row.ids[: row.stored] if self._is_idle(row) else row.ids[:-1]

    def _is_idle(self, row: Row) -> bool:
        return row.cache_slot >= self._decoding and row not in self._joining

    def _free_slot(self) -> int:
        """A free slot, else that of the least recently used finished row."""
        if len(self._slots) < self.max_rows:
            self._slots.append(None)
            return len(self._slots) - 1
        free = [
            (row.used if row is not None else 0, slot)
            for slot, row in enumerate(self._slots)
            if row is None or self._is_idle(row)
        ]
        return min(free)[1]

    def _put(self, row: Row, slot: int) -> None:
        self._slots[slot] = row
        row.cache_slot = slot

    def _exchange(self, one: int, other: int) -> None:
        if one == other:
            return
        rows = self._slots[one], self._slots[other]
        tokens = max(row.stored if row is not None else 0 for row in rows)
        self._cache.swap(one, other, tokens)
        for slot, row in ((other, rows[0]), (one, rows[1])):
            self._slots[slot] = row
            if row is not None:
                row.cache_slot = slot

    def _prefill_prompts(self) -> None:
        budget = CHUNK
        self._cache.reserve(len(self._slots), 0)
        for row in tuple(self._joining):
            self.at_work = (row,)
            if not self._follow_leader(row):
                continue
            if budget and not row.ready:
                budget -= self._prefill(row, budget)
            if row.ready:
                # First: if memory runs out here, the row is still one of those that join.
                self._exchange(row.cache_slot, self._decoding)
                self._joining.remove(row)
                self._decoding += 1
                self._state = None
            else:
                self._joining.remove(row)
                self._joining.append(row)  # behind rows that had no turn yet

    def _follow_leader(self, row: Row) -> bool:
        """Copy the shared prefix from the leader. False while the leader still computes it."""
        leader = row.leader
        if leader is None:
            return True
        if leader in self._joining and leader.stored < row.shared:
            return False
        row.leader = None
        tokens = min(row.shared, leader.stored)
        if self._slots[leader.cache_slot] is leader and tokens > row.stored:
            self._cache.copy(leader.cache_slot, row.cache_slot, tokens)
            row.stored = tokens
        return True

    def _prefill(self, row: Row, budget: int) -> int:
        start = row.stored
        end = min(len(row.ids) - 1, start + budget)
        self._cache.reserve(len(self._slots), end)
        device = self._cached_model.device
        ids = torch.tensor([row.ids[start:end]], device=device)
        self._cached_model.run(
            self._cache, row.cache_slot, ids, torch.tensor([start], device=device), end
        )
        row.stored = end
        return end - start

    def _decode(self) -> list[Row]:
        rows = self.rows[: self._decoding]
        self.at_work = rows
        state = self._state = self._state or _DecodingState(rows, self._cached_model.device)
        self._cache.reserve(len(self._slots), state.longest)
        ids, starts = state.tokens.unsqueeze(1), state.lengths - 1
        logits = self._cached_model.run(self._cache, 0, ids, starts, state.longest)
        sampled = sample(logits, state.batch_sampling, state.lengths)
        # One transfer for both; a double holds any token id.
        stacked = torch.stack((sampled.tokens.double(), sampled.logprobs.double()))
        tokens, logprobs = cast(list[list[float]], stacked.tolist())  # pyright: ignore[reportUnknownMemberType]
        state.advance(sampled.tokens)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if math.isfinite(logprob):
                row.append(int(token), logprob, self.version, self._ends)
            else:
                row.failure = NOT_FINITE
        for row in rows:
            if row.finish is not None or row.failure:
                self.leave(row)
        if any(row.failure for row in rows):
            self.drop_cache()  # no mask removes a non-finite value from the cache
        return rows
