"""Which samples go through the model together, and on which rank."""

from collections.abc import Sequence

__all__ = ["pack", "plan", "share"]


def pack(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Indexes in micro-batches of at most `limit` tokens, padding included.

    Samples of about the same length go together. One that is longer than the limit goes alone.
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
    """Indexes for each rank, of about as many tokens: the longest first, to who has least."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += lengths[index]
    return shares


def plan(lengths: Sequence[int], limit: int, ranks: int) -> list[list[list[int]]]:
    """The micro-batches of each rank, as many on each: empty ones where a rank has no more.

    Ranks meet in every micro-batch, so that one with fewer would leave the others waiting.
    """
    plans: list[list[list[int]]] = []
    for indexes in share(lengths, ranks):
        packed = pack([lengths[index] for index in indexes], limit)
        plans.append([[indexes[at] for at in batch] for batch in packed])
    most = max(len(batches) for batches in plans)
    return [batches + [[] for _ in range(most - len(batches))] for batches in plans]
