"""Trajectories as rows for trainers that take one prompt and one completion per row."""

from dataclasses import dataclass

from plimsoll.trajectories.samples import Sample
from plimsoll.workers.worker.trajectory_store import read_stored

__all__ = ["TokenRow", "token_rows"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A sample: the prompt ends at the first trained token, the completion at the last."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    """For each token of the completion: 1 if the policy generated it, else 0."""
    logprobs: list[float]
    """Log probabilities as the server returned them; 0 where the mask is 0."""
    turns: int = 0
    """Number of answers of the policy in it."""
    oldest: int = 0
    newest: int = 0
    """The numbers of the versions that generated the trained tokens."""

    @property
    def trained(self) -> int:
        return sum(self.mask)


def token_rows(trajectory: str) -> list[TokenRow]:
    """All samples with a token to train on, the one with the most of them last.

    A trajectory has several if the agent went back, or made requests outside its conversation.
    """
    if not trajectory:
        return []
    rows = [_token_row(sample) for sample in read_stored(trajectory).samples() if any(sample.mask)]
    return sorted(rows, key=lambda row: row.trained)


def _token_row(sample: Sample) -> TokenRow:
    begin, end = sample.mask.index(1), sample.mask.rindex(1) + 1
    numbers = [version.number for version in sample.versions if version is not None]
    return TokenRow(
        prompt=list(sample.ids[:begin]),
        completion=list(sample.ids[begin:end]),
        mask=list(sample.mask[begin:end]),
        logprobs=list(sample.logprobs[begin:end]),
        turns=len(sample.trained),
        oldest=min(numbers),
        newest=max(numbers),
    )
