import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gateway_parts import ServedSession, Stepped, serving

from plimsoll.gateway import gateway


@pytest.fixture
def stepped() -> Stepped:
    """An upstream that the test controls step by step."""
    return Stepped()


@pytest.fixture
async def served(tmp_path: Path, stepped: Stepped) -> AsyncIterator[ServedSession]:
    """A gateway in front of `stepped`, with one session and a client of it."""
    async with serving(stepped, tmp_path) as made:
        yield made


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pings immediate. Request it before `served`."""
    monkeypatch.setattr(gateway, "MAINTENANCE_SECONDS", 0.02)
    monkeypatch.setattr(gateway, "PING_SECONDS", 0.05)
