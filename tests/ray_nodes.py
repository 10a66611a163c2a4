"""A Ray cluster of several nodes on this host, and what must be gone after it."""

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator
from typing import Any

__all__ = ["ray_cluster", "why_no_ray"]


def why_no_ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "it is not installed"


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """With a head that has no room for workers. Add nodes as a test needs them."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        room = {"num_cpus": 0, "object_store_memory": 100 << 20}
        head = {**room, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            cluster.shutdown()
