"""Measurements of a pool, in memory that does not grow with the run.

Durations are counted in buckets 5 % wide, so the error of a quantile is at most 2.5 %.
"""

import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from plimsoll.sandboxes.pool.options import Reuse

__all__ = ["Histogram", "Meter", "PoolStats", "Quantiles", "Readings", "Span", "Trend"]

_K = TypeVar("_K", bound=Hashable)

_SMALLEST = 1e-4
_GROWTH = math.log(1.05)
_MAX_SPANS = 120
_MAX_REASONS = 20
_OTHER = "other reasons"


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of durations in seconds."""

    count: int
    p50: float
    p99: float


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Start durations in one part of the run."""

    since: float
    """Seconds since the pool's own start."""
    seconds: float
    starts: int
    p50: float
    p99: float


class PoolStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The statistics of a run's sandboxes. Values that were not measured are left out."""

    reuse: Reuse
    hits: int
    """Leases that found a warm sandbox."""
    cold_starts: int
    """Leases that waited for a start or a reset."""
    resets: int = 0
    retired: dict[str, int] = {}
    """Retired sandboxes by reason."""
    failed_starts: int = 0
    start: Quantiles | None = None
    start_over_time: list[Span] = []
    reset: Quantiles | None = None
    wait_warm: Quantiles | None = None
    wait_cold: Quantiles | None = None


class Readings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pool's measurements in a period, as counts, which can be added across pools.

    Durations are counts by bucket number.
    """

    start: dict[int, int] = {}
    reset: dict[int, int] = {}
    warm: dict[int, int] = {}
    cold: dict[int, int] = {}
    retired: dict[str, int] = {}
    failed_starts: int = 0

    def since(self, before: "Readings") -> "Readings":
        """The measurements since earlier readings."""
        return Readings(
            start=_difference(self.start, before.start),
            reset=_difference(self.reset, before.reset),
            warm=_difference(self.warm, before.warm),
            cold=_difference(self.cold, before.cold),
            retired=_difference(self.retired, before.retired),
            failed_starts=self.failed_starts - before.failed_starts,
        )


def _difference(counts: Mapping[_K, int], before: Mapping[_K, int]) -> dict[_K, int]:
    return {key: more for key, count in counts.items() if (more := count - before.get(key, 0)) > 0}


@dataclass(slots=True)
class Histogram:
    """A histogram of durations."""

    count: int = 0
    _buckets: Counter[int] = field(default_factory=Counter[int])

    @classmethod
    def of(cls, buckets: Mapping[int, int]) -> "Histogram":
        return cls(sum(buckets.values()), Counter(buckets))

    @property
    def buckets(self) -> dict[int, int]:
        return dict(self._buckets)

    def add(self, seconds: float) -> None:
        self.count += 1
        self._buckets[int(math.log(max(seconds, _SMALLEST) / _SMALLEST) / _GROWTH)] += 1

    def merge(self, other: "Histogram") -> None:
        self.count += other.count
        self._buckets.update(other._buckets)

    def quantile(self, share: float) -> float:
        """The duration that this share of the measurements does not exceed."""
        rank = max(1, math.ceil(share * self.count))
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return float(f"{_SMALLEST * math.exp((bucket + 0.5) * _GROWTH):.3g}")
        raise ValueError("the histogram is empty")

    @property
    def quantiles(self) -> Quantiles | None:
        if not self.count:
            return None
        return Quantiles(self.count, self.quantile(0.5), self.quantile(0.99))


@dataclass(slots=True)
class Trend:
    """Durations by time span; in a long run adjacent spans are merged."""

    width: float = 60.0
    _spans: dict[int, Histogram] = field(default_factory=dict[int, Histogram])

    def add(self, at: float, seconds: float) -> None:
        one = Histogram()
        one.add(seconds)
        self.merge(at, one)

    def merge(self, at: float, measured: Histogram) -> None:
        self._spans.setdefault(int(at / self.width), Histogram()).merge(measured)
        if len(self._spans) > _MAX_SPANS:
            before, self._spans = self._spans, {}
            self.width *= 2
            for index, one in before.items():
                self._spans.setdefault(index // 2, Histogram()).merge(one)

    @property
    def spans(self) -> list[Span]:
        return [
            Span(
                since=index * self.width,
                seconds=self.width,
                starts=one.count,
                p50=one.quantile(0.5),
                p99=one.quantile(0.99),
            )
            for index, one in sorted(self._spans.items())
        ]


@dataclass(slots=True)
class Meter:
    """Collects the measurements of a pool."""

    _failed_starts: int = 0
    _began: float = field(default_factory=time.monotonic)
    _start: Histogram = field(default_factory=Histogram)
    _trend: Trend = field(default_factory=Trend)
    _reset: Histogram = field(default_factory=Histogram)
    _warm: Histogram = field(default_factory=Histogram)
    _cold: Histogram = field(default_factory=Histogram)
    _retired: Counter[str] = field(default_factory=Counter[str])

    def started(self, seconds: float) -> None:
        self._start.add(seconds)
        self._trend.add(time.monotonic() - self._began, seconds)

    def start_failed(self) -> None:
        self._failed_starts += 1

    def leased(self, waited: float, *, warm: bool) -> None:
        (self._warm if warm else self._cold).add(waited)

    def reset(self, seconds: float) -> None:
        self._reset.add(seconds)

    def retired(self, reason: str, count: int = 1) -> None:
        separate = reason in self._retired or len(self._retired) < _MAX_REASONS
        self._retired[reason if separate else _OTHER] += count

    def add(self, readings: Readings) -> None:
        """Add the readings of another pool."""
        started = Histogram.of(readings.start)
        self._start.merge(started)
        if started.count:
            self._trend.merge(time.monotonic() - self._began, started)
        self._reset.merge(Histogram.of(readings.reset))
        self._warm.merge(Histogram.of(readings.warm))
        self._cold.merge(Histogram.of(readings.cold))
        self._failed_starts += readings.failed_starts
        for reason, count in readings.retired.items():
            self.retired(reason, count)

    @property
    def readings(self) -> Readings:
        """All measurements so far."""
        return Readings(
            start=self._start.buckets,
            reset=self._reset.buckets,
            warm=self._warm.buckets,
            cold=self._cold.buckets,
            retired=dict(self._retired),
            failed_starts=self._failed_starts,
        )

    @property
    def usual_start(self) -> float:
        return self._start.quantile(0.5) if self._start.count else 0.0

    def stats(self, reuse: Reuse) -> PoolStats:
        return PoolStats(
            reuse=reuse,
            hits=self._warm.count,
            cold_starts=self._cold.count,
            resets=self._reset.count,
            retired=dict(self._retired.most_common()),
            failed_starts=self._failed_starts,
            start=self._start.quantiles,
            start_over_time=self._trend.spans,
            reset=self._reset.quantiles,
            wait_warm=self._warm.quantiles,
            wait_cold=self._cold.quantiles,
        )
