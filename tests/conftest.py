import gc
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from commands_here import run_here
from parts import need, spec, why_no_compose, why_no_daemon
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, Sandbox
from plimsoll.sandboxes.trees.removal import remove_folder
from ray_nodes import why_no_ray


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The local backend's folder: one for all tests, since laying out the base takes a while."""
    return tmp_path_factory.mktemp("home")


BACKENDS = ("local", "docker")
"""The names of the backends. Each is also the name of a part that a test can `need`."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_backend: runs on every backend, not only on local")
    config.addinivalue_line("markers", "alone: measures time or looks at the whole host")
    config.addinivalue_line("markers", "slow: takes long; in the full suite, not in `make test`")
    config.addinivalue_line("markers", "nightly: only, or longer, in `make test-nightly`")
    config.addinivalue_line("markers", "docker: uses Docker; set automatically")
    config.addinivalue_line("markers", "ray: uses Ray; set automatically")
    # No deadline for an example: the machine may be busy.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """With `-n auto`, three workers per core: most tests wait for processes."""
    return min(3 * len(os.sched_getaffinity(0)), 16)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Give each xdist worker its own PLIMSOLL_HOME, so that workers share no sandboxes."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        home = Path(os.environ["PLIMSOLL_HOME"]) / worker
        home.mkdir(parents=True, exist_ok=True)
        os.environ["PLIMSOLL_HOME"] = str(home)
    elif session.config.getoption("numprocesses", None) and "PLIMSOLL_HOME" not in os.environ:
        home = Path(tempfile.mkdtemp(prefix="plimsoll-tests.", dir="/var/tmp"))
        os.environ["PLIMSOLL_HOME"] = str(home)
        session.config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `every_backend` on every backend, and all others on local, the fastest."""
    if "closed_backend" in metafunc.fixturenames:
        everywhere = metafunc.definition.get_closest_marker("every_backend")
        names = BACKENDS if everywhere else BACKENDS[:1]
        metafunc.parametrize("closed_backend", names, indirect=True)


SHARED = {
    "docker": {"docker", "docker-tls", "docker_daemon", "tls_daemon"},
    "ray": {"ray", "ray_part"},
}
"""The fixtures and parameters of tests that use Docker or Ray, by the mark of these tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use Docker or Ray, so that tests of one kind never run in parallel."""
    for item in items:
        call = getattr(item, "callspec", None)
        words = {} if call is None else call.params
        chosen = {word for word in words.values() if isinstance(word, str)}
        used = {*chosen, *getattr(item, "fixturenames", ())}
        for mark, names in SHARED.items():
            if names & used:
                item.add_marker(mark)


def pytest_collection_finish() -> None:
    """Freeze the imported objects, so that tests that collect and count objects skip them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Remove the temporary folders of earlier tests that are too deep for pytest.

    Otherwise it ends with a RecursionError, and without a report.
    """
    try:
        yield
    except RecursionError:
        factory = session.config._tmp_path_factory  # pyright: ignore[reportAttributeAccessIssue]
        root = factory.getbasetemp().parent
        assert root.name.startswith("pytest-of-")
        for folder in root.glob("garbage-*"):
            remove_folder(folder)


@pytest.fixture(scope="session")
def docker_daemon() -> str:
    """The address of a Docker daemon on this host, with the images that tests use."""
    usual = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    url = os.environ.get("PLIMSOLL_TEST_DOCKER") or usual
    need("docker", why_no_daemon(url))
    return url


@dataclass(frozen=True, slots=True)
class TlsDaemon:
    """A remote Docker daemon: behind TLS, and without access to this host's files."""

    url: str
    certificates: Path


@pytest.fixture(scope="session")
def tls_daemon() -> TlsDaemon:
    url = os.environ.get("PLIMSOLL_TEST_DOCKER_TLS")
    folder = os.environ.get("PLIMSOLL_TEST_DOCKER_CERTS")
    if url is None or folder is None:
        missing = "PLIMSOLL_TEST_DOCKER_TLS and PLIMSOLL_TEST_DOCKER_CERTS name no daemon"
        need("docker-tls", f"{missing}; .ci/daemons starts one and prints them")
    daemon = TlsDaemon(str(url), Path(str(folder)))
    need("docker-tls", why_no_daemon(daemon.url, daemon.certificates))
    return daemon


@pytest.fixture(scope="session")
def compose() -> None:
    """Skips where Compose V2 is not installed."""
    need("compose", why_no_compose())


@pytest.fixture(scope="session")
def ray_part() -> Iterator[None]:
    """Skips where Ray is not installed. All clusters of all tests have one token.

    Ray keeps the token for the life of the process: a process that has started a cluster with a
    token cannot use a cluster without one.
    """
    need("ray", why_no_ray())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
        yield


@pytest.fixture
def closed_backend(request: pytest.FixtureRequest) -> Backend:
    """A backend that is not entered yet. Not async, because `docker_daemon` uses `asyncio.run`."""
    if request.param == "local":
        # Always on disk: with `auto` the storage would depend on the host.
        return LocalBackend(LocalOptions(home=request.getfixturevalue("home"), upper="disk"))
    return DockerBackend(DockerOptions(host=request.getfixturevalue("docker_daemon")))


@pytest.fixture
async def backend(closed_backend: Backend) -> AsyncIterator[Backend]:
    """The local backend; for tests marked `every_backend`, every backend in turn."""
    try:
        await closed_backend.__aenter__()
    except SandboxUnavailable as error:
        need(closed_backend.name, str(error))
    yield closed_backend
    await closed_backend.__aexit__(None, None, None)


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


@pytest.fixture
def plimsoll_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `plimsoll` in this process, in the test's folder: for commands that start no sandbox."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: run_here(tmp_path, *args)
