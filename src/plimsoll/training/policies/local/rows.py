"""An answer that is being generated: a row of the batch."""

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
    """Tokens of an answer, as they are told to whoever asked."""

    ids: list[int]
    logprobs: list[float]
    versions: list[tuple[Version, int]]
    """Which version generated how many, in their order."""
    finish: Finish | None


@dataclass(slots=True, eq=False)
class Row:
    """A prompt, what was generated for it, and where its keys and values stand."""

    ids: list[int]
    """The prompt, and the answer as it grows."""
    prompt: int
    """How many of them are the prompt."""
    limit: int
    """How many there may be."""
    taste: GenerationParams
    seed: int | None
    """What its tokens are drawn with; None until it is known which one."""
    told: bool = False
    """Whether each token is told as it comes, or all at the end."""
    finish: Finish | None = None
    failure: str = ""
    """Why it cannot go on."""
    place: int = -1
    stored: int = 0
    """How many tokens have their keys and values in the cache."""
    leader: "Row | None" = None
    """Who is ahead in computing what this row begins with, too."""
    shared: int = 0
    """How many tokens both begin with."""
    used: int = 0
    """When it was last worked on; what is oldest makes room."""
    _logprobs: list[float] = field(default_factory=list[float])
    _versions: list[Version] = field(default_factory=list[Version])
    _told: int = 0

    @property
    def ready(self) -> bool:
        """Whether all but the last token is stored: it is what the next one is drawn after."""
        return self.stored >= len(self.ids) - 1

    def take(self, token: int, logprob: float, version: Version, ends: frozenset[int]) -> None:
        self.ids.append(token)
        self.stored += 1
        self._logprobs.append(logprob)
        self._versions.append(version)
        if token in ends:
            self.finish = "stop"
        elif len(self.ids) >= self.limit:
            self.finish = "length"

    def news(self) -> Tokens:
        """What was not told yet."""
        since, self._told = self._told, len(self._logprobs)
        runs = groupby(self._versions[since:])
        return Tokens(
            ids=self.ids[self.prompt + since :],
            logprobs=self._logprobs[since:],
            versions=[(version, len(list(run))) for version, run in runs],
            finish=self.finish,
        )


def common_length(one: Sequence[int], other: Sequence[int], above: int = 0) -> int:
    """How many numbers both begin with; 0 where that is not more than `above`."""
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
