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
    """With a head that has no room for workers. Add nodes as a test needs them."""
    from ray._common.utils import get_default_ray_temp_dir
    from ray.cluster_utils import Cluster

    # A cluster leaves its address there, wherever its own files are, and does not make the folder:
    # on a host where Ray never ran there is none.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        room = {"num_cpus": 0, "object_store_memory": 100 << 20}
        head = {**room, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            cluster.shutdown()
