"""The rows that a model works on at once. Rows come and go between any two tokens.

Each row has a place in the cache. The rows that draw tokens have the first places, one after
another, so that a step reads them without copying; behind them are the places of rows whose
prompts are still being read, and of rows that are over, kept for prompts that begin like them.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from plimsoll.core.versions import Version
from plimsoll.training.models import is_out_of_memory
from plimsoll.training.policies.local.kv_cache import CachedModel, KVCache
from plimsoll.training.policies.local.rows import Row, common_length
from plimsoll.training.policies.local.sampling import BatchSampling, batch_sampling, sample

__all__ = ["DecodingBatch"]

CHUNK = 512
"""Tokens of prompts that are read between two steps: so a long one holds nobody up."""
WORTH = 8
"""As many tokens must be shared for copying them to be less work than computing them."""
NOT_FINITE = "the model's probabilities are not finite: its weights are spoilt"


class _Steady:
    """What a step needs of its rows, kept from one step to the next while they stay."""

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        lengths = [len(row.ids) for row in rows]
        self.longest = max(lengths)
        self.lengths = torch.tensor(lengths, device=device)
        self.tokens = torch.tensor([row.ids[-1] for row in rows], device=device)
        self.chances: BatchSampling = batch_sampling(
            [row.taste for row in rows], [row.seed or 0 for row in rows], device
        )

    def follow(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.lengths = self.lengths + 1
        self.longest += 1


class DecodingBatch:
    """Knows nothing of threads and requests. Not to be used by two threads."""

    def __init__(
        self, model: PreTrainedModel, version: Version, *, ends: frozenset[int], most: int
    ) -> None:
        self.version = version
        self.most = most
        """Rows that it may have at once, those included that are over and kept."""
        self.at_work: Sequence[Row] = ()
        """Whom the pass that is under way, or failed, was for."""
        self._model = model
        self._passes = CachedModel(model)
        self._passes.check()
        self._ends = ends
        self._cache = KVCache()
        self._places: list[Row | None] = []
        self._drawing = 0
        """How many rows draw tokens."""
        self._joining: deque[Row] = deque()
        self._steady: _Steady | None = None
        self._clock = count(1)

    @property
    def rows(self) -> list[Row]:
        """All that are under way."""
        drawing = [row for row in self._places[: self._drawing] if row is not None]
        return [*drawing, *self._joining]

    def __len__(self) -> int:
        return self._drawing + len(self._joining)

    def join(self, row: Row) -> None:
        """Give a row a place. Its tokens are computed, or copied where another has them."""
        best, shared = None, WORTH - 1
        wanted = row.ids[:-1]
        for other in self._places:
            if other is not None:
                length = common_length(wanted, self._offered(other), shared)
                if length > shared:
                    best, shared = other, length
        row.leader, row.shared = best, shared
        if best is not None and self._is_idle(best) and shared == best.stored:
            self._put(row, best.place)
            row.stored, row.leader = shared, None
        else:
            self._put(row, self._free_place())
            row.stored = 0
        row.used = next(self._clock)
        self._joining.append(row)

    def leave(self, row: Row) -> None:
        """A row is over, or given up. What it computed stays until its place is needed."""
        if row in self._joining:
            self._joining.remove(row)
        elif 0 <= row.place < self._drawing and self._places[row.place] is row:
            self._stop_drawing(row)
        row.leader = None
        row.used = next(self._clock)

    def step(self) -> list[Row]:
        """Read a piece of the prompts, then draw a token for each row that is ready.

        Gives the rows that got one, or failed to.
        """
        self._read_prompts()
        return self._draw() if self._drawing else []

    def renew(self, tensors: Mapping[str, Tensor] | None, version: Version) -> None:
        """New weights: what was computed with the old ones is forgotten, no token is."""
        if tensors is not None:
            state = self._model.state_dict()
            with torch.no_grad():
                for name, tensor in tensors.items():
                    state[name].copy_(tensor)
            self.forget()
        self.version = version

    def forget(self, *, but: Row | None = None) -> None:
        """Drop the cache. Rows under way compute theirs anew, `but` for one that is over."""
        rows = [row for row in self.rows if row is not but]
        self._cache.drop()
        self._places.clear()
        self._joining.clear()
        self._drawing = 0
        self._steady = None
        for row in sorted(rows, key=lambda row: row.used):
            self.join(row)

    def _stop_drawing(self, row: Row) -> None:
        try:
            self._exchange(row.place, self._drawing - 1)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Without memory to move another into its place, all begin anew without it.
            self.forget(but=row)
        else:
            self._drawing -= 1
            self._steady = None

    def _offered(self, row: Row) -> list[int]:
        """The tokens of a row that are in the cache, or will be."""
        return row.ids[: row.stored] if self._is_idle(row) else row.ids[:-1]

    def _is_idle(self, row: Row) -> bool:
        return row.place >= self._drawing and row not in self._joining

    def _free_place(self) -> int:
        """One that nobody has; else that of the row that has been over for longest."""
        if len(self._places) < self.most:
            self._places.append(None)
            return len(self._places) - 1
        free = [
            (row.used if row is not None else 0, place)
            for place, row in enumerate(self._places)
            if row is None or self._is_idle(row)
        ]
        return min(free)[1]

    def _put(self, row: Row, place: int) -> None:
        self._places[place] = row
        row.place = place

    def _exchange(self, one: int, other: int) -> None:
        if one == other:
            return
        rows = self._places[one], self._places[other]
        tokens = max(row.stored if row is not None else 0 for row in rows)
        self._cache.swap(one, other, tokens)
        for place, row in ((other, rows[0]), (one, rows[1])):
            self._places[place] = row
            if row is not None:
                row.place = place

    def _read_prompts(self) -> None:
        budget = CHUNK
        self._cache.reserve(len(self._places), 0)
        for row in tuple(self._joining):
            self.at_work = (row,)
            if not self._follow_leader(row):
                continue
            if budget and not row.ready:
                budget -= self._read(row, budget)
            if row.ready:
                # First of all: where memory runs out the row is still one of those that join.
                self._exchange(row.place, self._drawing)
                self._joining.remove(row)
                self._drawing += 1
                self._steady = None
            else:
                self._joining.remove(row)
                self._joining.append(row)  # behind those that have not had their turn

    def _follow_leader(self, row: Row) -> bool:
        """Copies what another row has computed. False while it is still at it."""
        leader = row.leader
        if leader is None:
            return True
        if leader in self._joining and leader.stored < row.shared:
            return False
        row.leader = None
        tokens = min(row.shared, leader.stored)
        if self._places[leader.place] is leader and tokens > row.stored:
            self._cache.copy(leader.place, row.place, tokens)
            row.stored = tokens
        return True

    def _read(self, row: Row, budget: int) -> int:
        start = row.stored
        end = min(len(row.ids) - 1, start + budget)
        self._cache.reserve(len(self._places), end)
        device = self._passes.device
        ids = torch.tensor([row.ids[start:end]], device=device)
        self._passes.run(self._cache, row.place, ids, torch.tensor([start], device=device), end)
        row.stored = end
        return end - start

    def _draw(self) -> list[Row]:
        rows = self.rows[: self._drawing]
        self.at_work = rows
        steady = self._steady = self._steady or _Steady(rows, self._passes.device)
        self._cache.reserve(len(self._places), steady.longest)
        ids, starts = steady.tokens.unsqueeze(1), steady.lengths - 1
        logits = self._passes.run(self._cache, 0, ids, starts, steady.longest)
        drawn = sample(logits, steady.chances, steady.lengths)
        # One transfer for both; a double holds any token's number.
        told = torch.stack((drawn.tokens.double(), drawn.logprobs.double()))
        tokens, logprobs = cast(list[list[float]], told.tolist())  # pyright: ignore[reportUnknownMemberType]
        steady.follow(drawn.tokens)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if math.isfinite(logprob):
                row.take(int(token), logprob, self.version, self._ends)
            else:
                row.failure = NOT_FINITE
        for row in rows:
            if row.finish is not None or row.failure:
                self.leave(row)
        if any(row.failure for row in rows):
            self.forget()  # a value in the cache that is not finite is never masked
        return rows
