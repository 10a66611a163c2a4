"""A row of the decoding batch: an answer that is being generated."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from plimsoll.core.versions import Version
from plimsoll.training.policies.local.sampling import GenerationParams

__all__ = ["Finish", "Row", "Tokens", "common_length"]

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
