import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "gateway"))

from tiny_model import make_model


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minimal model."""
    return make_model(tmp_path_factory.mktemp("base"), layers=1, hidden=16, heads=2)
