import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_fixtures import engine, mark, shared_cluster

__all__ = ["engine", "mark", "shared_cluster"]
