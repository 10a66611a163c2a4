"""A build context with a Dockerfile, built by a real backend and inspected in real sandboxes."""

import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from parts import need, spec
from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.sandbox import LocalSandbox
from plimsoll.sandboxes.protocol import ExecResult, Image, ImageSource
from plimsoll.sandboxes.trees.removal import remove_folder


class Kit:
    """One context folder and one backend."""

    def __init__(self, backend: LocalBackend, context: Path, home: Path) -> None:
        self.backend = backend
        self.context = context
        self.home = home
        self.made: list[str] = []
        """The instructions that were not cached, in order."""

    def write(self, name: str, text: str | bytes = "", mode: int = 0o644) -> Path:
        path = self.context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return path

    async def build(self, dockerfile: str, timeout: float = 60.0) -> Image:
        """Build a Dockerfile. A FROM line is added if it has none."""
        text = textwrap.dedent(dockerfile).lstrip("\n")
        if "FROM " not in text:
            text = f"FROM any\n{text}"
        file = self.write("Dockerfile", text)
        source = ImageSource(context=self.context, dockerfile=file, build_timeout=timeout)
        self.made.clear()
        return await self.backend.build(source, on_output=self.on_output)

    def on_output(self, _: str, data: bytes) -> None:
        words = data.decode("utf-8", "replace").split(None, 1)
        if words and words[0] in ("RUN", "COPY", "ADD", "WORKDIR"):
            self.made.append(" ".join(words).strip())

    @asynccontextmanager
    async def sandbox(self, image: Image) -> AsyncIterator[LocalSandbox]:
        sandbox = await self.backend.create(image, spec())
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def exec(self, image: Image, command: str) -> ExecResult:
        async with self.sandbox(image) as sandbox:
            return await sandbox.exec(command)

    async def see(self, image: Image, command: str) -> str:
        """The output of a command in a new sandbox. The command must succeed."""
        done = await self.exec(image, command)
        assert done.ok, done.complaint()
        return done.stdout.text.removesuffix("\n")

    async def show(self, dockerfile: str, command: str) -> str:
        return await self.see(await self.build(dockerfile), command)

    async def refused(self, dockerfile: str) -> str:
        """The error message of a failing build, without the path of the context."""
        with pytest.raises(BuildError) as caught:
            await self.build(dockerfile)
        return str(caught.value).replace(f"{self.context}/", "")


@pytest.fixture(scope="session")
def builder_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builder-home")


@pytest.fixture
async def kit(builder_home: Path, tmp_path: Path) -> AsyncIterator[Kit]:
    """A kit without any cached layer."""
    need("root", None if os.geteuid() == 0 else "only root can have files of several users")
    context = tmp_path / "context"
    context.mkdir()
    async with LocalBackend(LocalOptions(home=builder_home)) as backend:
        yield Kit(backend, context, builder_home)
    remove_folder(builder_home / "layers")
    assert list((builder_home / "sandboxes").iterdir()) == []
