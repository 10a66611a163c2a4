"""The work for a request grows linearly with its length, for every kind of element."""

import gc
import sys
import time
import tracemalloc
from types import FrameType

import pytest
from repeated_elements import KINDS, Kind

from plimsoll.core.versions import FIRST_VERSION
from plimsoll.trajectories.graph import Graph
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.reported_tokens import AnsweredRequest

every_kind = pytest.mark.parametrize(
    "kind", KINDS, ids=[f"{kind.dialect.name}: {kind.name}" for kind in KINDS]
)

ANSWER = AnsweredRequest(
    answer=Message("assistant"),
    finish="stop",
    dialect="chat",
    at=0.0,
    seconds=0.0,
    version=FIRST_VERSION,
    versions=(),
    prompt_tokens=None,
    answer_tokens=None,
    tokens=None,
)
SLACK = 0.01
"""Seconds that do not depend on the number of elements."""


def work(kind: Kind, body: bytes) -> None:
    """Everything that the gateway does with a request, except sending it."""
    request = kind.dialect.read(body)
    graph = Graph()
    graph.commit(graph.locate(request.history, request.tools), ANSWER)


def calls(kind: Kind, body: bytes) -> int:
    """The number of function calls, in Python and in C."""
    count = 0

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work(kind, body)
    finally:
        sys.setprofile(None)
    return count


def seconds(kind: Kind, body: bytes) -> float:
    """The best CPU time of this thread: copies and decodes in C are not calls."""
    took: list[float] = []
    for _ in range(2):
        started = time.thread_time()
        work(kind, body)
        took.append(time.thread_time() - started)
    return min(took)


def memory(kind: Kind, body: bytes) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work(kind, body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@every_kind
def test_twice_the_elements_are_at_most_twice_the_calls(kind: Kind):
    few, many = (calls(kind, kind.body(kind.most // share)) for share in (16, 8))
    assert many <= 2 * few + 100


@every_kind
def test_four_times_the_elements_are_about_four_times_the_seconds(kind: Kind):
    few, many = kind.body(kind.most // 4), kind.body(kind.most)
    # A quadratic reader needs sixteen times as long. A measurement disturbed by load is repeated.
    assert any(seconds(kind, many) <= 8 * seconds(kind, few) + SLACK for _ in range(4))


@every_kind
def test_memory_is_bounded_by_the_size_of_the_body(kind: Kind):
    body = kind.body(kind.most // 4)
    assert memory(kind, body) <= 16 * len(body) + (1 << 20)
