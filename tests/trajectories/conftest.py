import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from recording_parts import talking


@pytest.fixture
def talk(tmp_path: Path):
    yield from talking(tmp_path)
