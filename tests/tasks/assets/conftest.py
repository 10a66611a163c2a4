import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from parts import need, spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import ImageSource, Mount, Sandbox
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.plan import Plan, make_plan
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.assets.stager import Outcome, Stager
from plimsoll.tasks.assets.store import AssetStore


@dataclass
class Repo:
    """A git repository for one test."""

    path: Path

    def git(self, *args: str) -> str:
        name = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        command = ["git", *name, *args]
        return subprocess.run(
            command, cwd=self.path, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, file: str, text: str) -> str:
        (self.path / file).parent.mkdir(parents=True, exist_ok=True)
        (self.path / file).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", f"write {file}")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository with one commit, tagged v1."""
    path = tmp_path / "repo"
    path.mkdir()
    repo = Repo(path)
    repo.git("init", "-q", "-b", "trunk")
    repo.commit("lib/parser.py", "ANSWER = 1\n")
    repo.git("tag", "v1")
    return repo


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder without logging."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the URL of a local server for it."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The assets folder of the test."""
    return tmp_path / "assets"


@pytest.fixture
def stage(folder: Path) -> Callable[..., Outcome]:
    """Stage a plan or requests."""

    def stage(
        *requests: object, sources: LocalSources | None = None, plan: Plan | None = None
    ) -> Outcome:
        plan = plan or make_plan((), (), requests)  # type: ignore[arg-type]
        with AssetStore.locked(folder) as store:
            return Stager(store, sources or LocalSources(), print).stage(plan)

    return stage


@pytest.fixture
async def offline(folder: Path, home: Path) -> AsyncIterator[Callable[..., object]]:
    """Start sandboxes with the staged assets and without a network."""
    backend = LocalBackend(LocalOptions(home=home))
    try:
        await backend.__aenter__()
    except SandboxUnavailable as error:
        need("local", str(error))
    image = await backend.build(ImageSource(reference="debian:12"))

    async def start() -> Sandbox:
        assets = StagedAssets.load(folder)
        path = f"{assets.path_prefix}:/usr/local/bin:/usr/bin:/bin"
        mounts = tuple(Mount(mount.source, mount.target) for mount in assets.mounts())
        return await backend.create(
            image, spec(mounts=mounts, env={**assets.env(), "PATH": path, "HOME": "/root"})
        )

    yield start
    await backend.__aexit__(None, None, None)
