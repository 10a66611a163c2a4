"""Metrics in the text format of Prometheus."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from plimsoll.gateway.metrics import BUCKET_BOUNDS, Histogram, Metrics
from plimsoll.gateway.sessions.pending_request import FAILURE_OUTCOMES
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.upstreams.replicas import ReplicaState

__all__ = ["CONTENT_TYPE", "expose"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def expose(
    metrics: Metrics, sessions: Iterable[Session], replicas: Sequence[ReplicaState]
) -> bytes:
    flying = [session.in_flight for session in sessions]
    lines = [
        *_one("sessions_open", "gauge", "Open sessions.", len(flying)),
        *_one("sessions_total", "counter", "Sessions opened.", metrics.sessions),
        *_one("requests_in_flight", "gauge", "Requests in flight.", sum(flying)),
        *_outcomes(metrics),
        *_tokens(metrics),
        *_histogram(metrics.seconds),
        *_one(
            "upstream_failures_total",
            "counter",
            "Requests that the policy failed to answer.",
            sum(n for (_, what), n in metrics.outcomes.items() if what in FAILURE_OUTCOMES),
        ),
        *_replicas(replicas),
        *_one(
            "internal_errors_total", "counter", "Internal errors of the gateway.", metrics.internal
        ),
        *_one("resident_bytes", "gauge", "Resident memory.", _resident()),
    ]
    return ("\n".join(lines) + "\n").encode()


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP plimsoll_gateway_{name} {text}"
    yield f"# TYPE plimsoll_gateway_{name} {kind}"


def _one(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"plimsoll_gateway_{name} {value}"


def _outcomes(metrics: Metrics) -> Iterator[str]:
    name = "requests_total"
    yield from _head(name, "counter", "Requests by outcome.")
    for (dialect, what), count in sorted(metrics.outcomes.items()):
        labels = f'dialect="{dialect}",outcome="{what}"'
        yield f"plimsoll_gateway_{name}{{{labels}}} {count}"


def _replicas(replicas: Sequence[ReplicaState]) -> Iterator[str]:
    figures: tuple[tuple[str, str, str, Callable[[ReplicaState], int]], ...] = (
        ("replica_up", "gauge", "Whether a replica is up.", lambda one: int(one.up)),
        ("replica_in_flight", "gauge", "Its requests.", lambda one: one.in_flight),
        ("replica_failures_total", "counter", "Its failures.", lambda one: one.failures),
        ("replica_cooled_total", "counter", "Its cooldowns.", lambda one: one.cooled),
    )
    for name, kind, text, figure in figures:
        yield from _head(name, kind, text)
        for number, replica in enumerate(replicas):
            yield f'plimsoll_gateway_{name}{{replica="{number}"}} {figure(replica)}'


def _tokens(metrics: Metrics) -> Iterator[str]:
    name = "tokens_total"
    yield from _head(name, "counter", "Tokens, as the upstream counts them.")
    yield f'plimsoll_gateway_{name}{{of="prompt"}} {metrics.prompt_tokens}'
    yield f'plimsoll_gateway_{name}{{of="answer"}} {metrics.answer_tokens}'


def _histogram(histogram: Histogram) -> Iterator[str]:
    name = "request_seconds"
    yield from _head(name, "histogram", "Duration of requests, until the end of the answer.")
    total = 0
    for bound, count in zip((*BUCKET_BOUNDS, "+Inf"), histogram.counts, strict=True):
        total += count
        yield f'plimsoll_gateway_{name}_bucket{{le="{bound}"}} {total}'
    yield f"plimsoll_gateway_{name}_sum {histogram.sum:.6f}"
    yield f"plimsoll_gateway_{name}_count {total}"


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
