"""Fixtures: each engine in turn, with shared parts, and a check for leftover processes."""

from collections.abc import Iterator
from typing import Any

import pytest
from supervised import Mark

from helpers import MARK
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.engines.protocol import Engine
from plimsoll.workers.engines.ray import RayEngine, RayOptions
from ray_nodes import ray_cluster

__all__ = ["engine", "mark", "shared_cluster"]


@pytest.fixture(scope="session")
def mark() -> Iterator[Mark]:
    """Mark all processes started from here on; they must be gone after the last test."""
    made = Mark()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, made.value)
        yield made
    made.gone()


@pytest.fixture(scope="session")
def shared_cluster(mark: Mark, ray_part: None) -> Iterator[Any]:
    """A shared cluster that tests leave unchanged: a head, and two nodes for workers."""
    with ray_cluster() as cluster:
        for _ in range(2):
            cluster.add_node(num_cpus=4)
        yield cluster


@pytest.fixture(params=["process", "ray"])
def engine(request: pytest.FixtureRequest, mark: Mark) -> Engine:
    """Every engine in turn, not entered yet."""
    if request.param == "process":
        return ProcessEngine()
    return RayEngine(RayOptions(address=request.getfixturevalue("shared_cluster").address))
