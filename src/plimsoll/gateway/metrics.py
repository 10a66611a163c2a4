"""Counters of a gateway. No label grows with the number of sessions."""

import time
from bisect import bisect_left
from collections import Counter

__all__ = ["BUCKET_BOUNDS", "Histogram", "Metrics"]

BUCKET_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Durations in seconds, by bucket."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        self.sum += seconds


class Metrics:
    """Totals since the start of the gateway."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """By dialect and outcome: `ok`, a refusal kind, `cancelled` or `internal`."""
        self.prompt_tokens = 0
        self.answer_tokens = 0
        self.seconds = Histogram()
        self.sessions = 0
        """Sessions opened."""
        self.internal = 0
        """Internal errors of the gateway; expected to stay 0."""
        self.last_maintenance = time.monotonic()
        """The time of the last maintenance pass. An old value means that the event loop is
        blocked."""
