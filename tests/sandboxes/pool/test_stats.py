"""Statistics of a pool: bounded error, bounded memory, no values without measurements."""

import random

import msgspec
import pytest

from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.pool.stats import Histogram, Meter, Readings, Trend


def test_quantiles_have_a_bounded_error():
    chance = random.Random(7)
    times = sorted(chance.lognormvariate(-1, 1) for _ in range(5000))
    histogram = Histogram()
    for seconds in times:
        histogram.add(seconds)
    assert histogram.quantile(0.5) == pytest.approx(times[2499], rel=0.03)
    assert histogram.quantile(0.99) == pytest.approx(times[4949], rel=0.03)


def test_an_empty_histogram_has_no_quantiles():
    assert Histogram().quantiles is None
    written = msgspec.to_builtins(Meter().stats(Reuse.FRESH))
    assert written == {"reuse": "fresh", "hits": 0, "cold_starts": 0}


def test_a_long_run_counts_all_starts_in_few_spans():
    trend = Trend()
    for minute in range(7 * 24 * 60):
        trend.add(minute * 60.0, 0.1 if minute < 5000 else 10.0)
    spans = trend.spans
    assert len(spans) <= 120
    assert sum(span.starts for span in spans) == 7 * 24 * 60
    assert spans[0].p50 == pytest.approx(0.1, rel=0.03)
    assert spans[-1].p50 == pytest.approx(10.0, rel=0.03)
    assert [span.since for span in spans] == [n * spans[0].seconds for n in range(len(spans))]


def test_the_first_minute_is_a_span():
    trend = Trend()
    trend.add(3.0, 0.5)
    trend.add(61.0, 1.0)
    assert [(span.since, span.seconds, span.starts) for span in trend.spans] == [
        (0.0, 60.0, 1),
        (60.0, 60.0, 1),
    ]


def test_reasons_beyond_the_limit_are_counted_together():
    meter = Meter()
    for number in range(500):
        meter.retired(f"/tmp/{number} was changed")
    retired = meter.stats(Reuse.RESET).retired
    assert len(retired) <= 21
    assert sum(retired.values()) == 500


def measured(seed: int) -> Meter:
    """The meter of a pool that has worked for a while."""
    meter, chance = Meter(), random.Random(seed)
    for _ in range(1000):
        meter.started(chance.lognormvariate(-1, 1))
        meter.leased(chance.lognormvariate(-3, 1), warm=chance.random() < 0.7)
        meter.reset(chance.lognormvariate(-2, 1))
    meter.start_failed()
    meter.retired("it died")
    return meter


def test_readings_of_several_pools_add_up_to_those_of_one():
    pools, expected, received = [measured(1), measured(2)], Meter(), Meter()
    for pool in pools:
        expected.add(pool.readings)
        half = pool.readings
        received.add(msgspec.json.decode(msgspec.json.encode(half), type=Readings))
        pool.started(9.0)
        expected.started(9.0)
        received.add(pool.readings.since(half))
    assert received.stats(Reuse.RESET) == expected.stats(Reuse.RESET)
    stats = received.stats(Reuse.RESET)
    assert stats.start is not None
    assert stats.start.count == 2002 == sum(span.starts for span in stats.start_over_time)
    assert (stats.failed_starts, stats.retired) == (2, {"it died": 2})


def test_the_size_of_readings_does_not_grow_with_the_run():
    meter = measured(1)
    before = meter.readings
    meter.started(0.2)
    meter.leased(0.01, warm=True)
    assert len(msgspec.json.encode(meter.readings.since(before))) < 60
    assert meter.readings.since(meter.readings) == Readings()
