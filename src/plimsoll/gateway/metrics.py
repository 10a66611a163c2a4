"""What a gateway counts of itself. No label of it grows with the number of sessions."""

import time
from bisect import bisect_left
from collections import Counter

__all__ = ["BUCKET_BOUNDS", "Histogram", "Metrics"]

BUCKET_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Seconds, in buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        self.sum += seconds


class Metrics:
    """Counted since the start."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """By dialect, and `ok`, the kind of refusal, `cancelled` or `internal`."""
        self.prompt_tokens = 0
        self.answer_tokens = 0
        self.seconds = Histogram()
        self.sessions = 0
        """Opened."""
        self.internal = 0
        """Errors of the gateway itself: there should be none."""
        self.upkept = time.monotonic()
        """When the gateway last looked after its sessions: long ago where its loop is stuck."""
