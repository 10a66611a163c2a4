import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parts import need, spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, Sandbox


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The local backend's folder: one for all tests, since laying out the base takes a while."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(params=["local"])
async def backend(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Backend]:
    """Every backend in turn."""
    started = LocalBackend(LocalOptions(home=home))
    try:
        await started.__aenter__()
    except SandboxUnavailable as error:
        need(request.param, str(error))
    yield started
    await started.__aexit__(None, None, None)


@pytest.fixture
async def image(backend: Backend) -> Image:
    """A plain system: a shell, the usual tools, Python and Perl."""
    return await backend.build(ImageSource(reference="debian:12"))


@pytest.fixture
async def sandbox(backend: Backend, image: Image) -> AsyncIterator[Sandbox]:
    """A sandbox without a network."""
    made = await backend.create(image, spec())
    yield made
    await made.close()
