"""The metrics of a gateway in the text format of Prometheus."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from plimsoll.gateway.metrics import BUCKET_BOUNDS, Histogram, Metrics
from plimsoll.gateway.sessions.pending_request import FAILURE_OUTCOMES
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.upstreams.replicas import ReplicaState

__all__ = ["CONTENT_TYPE", "GatewayCollector", "expose"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_ReplicaFigure = tuple[
    type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[ReplicaState], int]
]
_REPLICA_FIGURES: tuple[_ReplicaFigure, ...] = (
    (GaugeMetricFamily, "replica_up", "Whether a replica is up.", lambda one: int(one.up)),
    (GaugeMetricFamily, "replica_in_flight", "Requests at a replica.", lambda one: one.in_flight),
    (CounterMetricFamily, "replica_failures", "Failures of a replica.", lambda one: one.failures),
    (CounterMetricFamily, "replica_cooled", "Cooldowns of a replica.", lambda one: one.cooled),
)


def expose(
    metrics: Metrics, sessions: Iterable[Session], replicas: Sequence[ReplicaState]
) -> bytes:
    """The body of a reply to `GET /metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GatewayCollector(metrics, sessions, replicas))
    return generate_latest(registry)


class GatewayCollector(Collector):
    """Collects the current figures of a gateway and its replicas."""

    def __init__(
        self, metrics: Metrics, sessions: Iterable[Session], replicas: Sequence[ReplicaState]
    ) -> None:
        self._metrics = metrics
        self._sessions = sessions
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        in_flight = [session.in_flight for session in self._sessions]
        yield _gauge("sessions_open", "Open sessions.", len(in_flight))
        yield _counter("sessions", "Sessions opened.", metrics.sessions)
        yield _gauge("requests_in_flight", "Requests in flight.", sum(in_flight))
        yield _outcomes(metrics)
        yield _tokens(metrics)
        yield _durations(metrics.seconds)
        failures = sum(
            count for (_, kind), count in metrics.outcomes.items() if kind in FAILURE_OUTCOMES
        )
        yield _counter("upstream_failures", "Requests that the policy failed to answer.", failures)
        yield from self._replica_figures()
        yield _counter("internal_errors", "Internal errors of the gateway.", metrics.internal)
        yield _gauge("resident_bytes", "Resident memory.", _resident())

    def _replica_figures(self) -> Iterator[Metric]:
        for family, name, text, figure in _REPLICA_FIGURES:
            metric = family(_name(name), text, labels=["replica"])
            for number, replica in enumerate(self._replicas):
                metric.add_metric([str(number)], figure(replica))
            yield metric


def _name(name: str) -> str:
    return f"plimsoll_gateway_{name}"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_name(name), text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_name(name), text, value=value)


def _outcomes(metrics: Metrics) -> Metric:
    metric = CounterMetricFamily(
        _name("requests"), "Requests by outcome.", labels=["dialect", "outcome"]
    )
    for labels, count in sorted(metrics.outcomes.items()):
        metric.add_metric(labels, count)
    return metric


def _tokens(metrics: Metrics) -> Metric:
    metric = CounterMetricFamily(
        _name("tokens"), "Tokens, as the upstream counts them.", labels=["of"]
    )
    metric.add_metric(["prompt"], metrics.prompt_tokens)
    metric.add_metric(["answer"], metrics.answer_tokens)
    return metric


def _durations(histogram: Histogram) -> Metric:
    bounds = (*map(str, BUCKET_BOUNDS), "+Inf")
    return HistogramMetricFamily(
        _name("request_seconds"),
        "Duration of requests, until the end of the answer.",
        buckets=list(zip(bounds, accumulate(histogram.counts), strict=True)),
        sum_value=histogram.sum,
    )


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
