"""A Ray cluster of several nodes on this host, and its cleanup."""

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["ray_cluster", "why_no_ray"]


def why_no_ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "it is not installed"


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """A cluster whose head has no CPUs for workers. The test adds the other nodes."""
    from ray._common.utils import get_default_ray_temp_dir
    from ray.cluster_utils import Cluster

    # A cluster writes its address to this folder, whatever its `temp_dir`, but does not create it.
    # The folder is missing on a host where Ray has never run.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        room = {"num_cpus": 0, "object_store_memory": 100 << 20}
        head = {**room, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            cluster.shutdown()
