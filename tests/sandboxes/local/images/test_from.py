"""FROM: a root of the config, or the host's system with one warning."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from parts import spec
from plimsoll.core.errors import BuildError, SandboxError, SandboxUnsupported
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import ImageSource

Kit = Any


def make_root(path: Path) -> Path:
    """A small root file system: bash, a few programs and their libraries."""
    for folder in ("bin", "etc", "tmp"):
        (path / folder).mkdir(parents=True)
    files = [Path("/usr/bin", name) for name in ("bash", "cat", "ls", "mkdir")]
    for program in files[:]:
        output = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        files += [Path(found) for found in re.findall(r"(/\S+) \(0x", output)]
    for file in dict.fromkeys(files):
        name = f"bin/{file.name}" if file.parent == Path("/usr/bin") else str(file).lstrip("/")
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(file.read_bytes())
        (path / name).chmod(0o755)
    (path / "bin/sh").symlink_to("bash")
    (path / "etc/only-here").write_text("small\n")
    return path


async def run(backend: LocalBackend, source: ImageSource, command: str) -> str:
    image = await backend.build(source)
    sandbox = await backend.create(image, spec())
    try:
        done = await sandbox.exec(command)
    finally:
        await sandbox.close()
    assert done.ok, done.complaint()
    return done.stdout.text.strip()


async def test_a_mapped_root_is_used_alone(builder_home: Path, tmp_path: Path):
    root = make_root(tmp_path / "a root: with, odd\\name")
    before = sorted(str(p) for p in root.rglob("*"))
    file = tmp_path / "Dockerfile"
    file.write_text(
        "FROM host AS h\nRUN echo from the host >/given\n"
        "FROM small:1\nWORKDIR /w\nRUN cat /etc/only-here >x\nCOPY Dockerfile .\n"
        "COPY --from=h /given .\n"
    )
    options = LocalOptions(home=builder_home, roots={"small:1": root})
    async with LocalBackend(options) as backend:
        shown = await run(backend, ImageSource(dockerfile=file), "cat x given; ls /")
        assert shown.split("\n")[:2] == ["small", "from the host"]
        assert not {"usr", "opt", "home"} & set(shown.split("\n")) - {"usr"}
        source = ImageSource(reference="small:1")
        assert await run(backend, source, "test ! -e /usr/bin/env && cat /etc/only-here") == "small"
        assert len(backend.warnings) == 1
        assert backend.warnings[0].startswith("host is not under [local] roots")
    assert sorted(str(p) for p in root.rglob("*")) == before


async def test_an_invalid_root_is_an_error(builder_home: Path, tmp_path: Path):
    options = LocalOptions(home=builder_home, roots={"small": tmp_path, "none": tmp_path / "no"})
    async with LocalBackend(options) as backend:
        for name in ("small", "none"):
            with pytest.raises(SandboxError, match="is not a root file system"):
                await backend.build(ImageSource(reference=name))


async def test_unmapped_names_are_warned_about_once(kit: Kit):
    await kit.build(
        "FROM python:3.12\nRUN true\nFROM ubuntu\nRUN true\nCOPY --from=0 /etc/passwd /x"
    )
    await kit.build("FROM debian")
    assert [text.split()[0] for text in kit.backend.warnings] == ["ubuntu"]


async def test_scratch_is_refused_with_its_line(kit: Kit):
    message = await kit.refused("FROM any AS a\nFROM scratch\nCOPY --from=a /x /")
    assert message.startswith("Dockerfile:2: FROM scratch")


async def test_a_name_alone_is_an_image(kit: Kit):
    assert await run(kit.backend, ImageSource(reference="python:3.12"), "echo hi") == "hi"
    assert await run(kit.backend, ImageSource(), "pwd") == "/"


async def test_compose_is_refused(kit: Kit):
    file = kit.write("docker-compose.yaml", "services: {}")
    with pytest.raises(
        SandboxUnsupported, match="does not support compose services; use --backend docker"
    ):
        await kit.backend.build(ImageSource(context=kit.context, compose=file))


async def test_the_context_can_be_another_folder(kit: Kit, tmp_path: Path):
    kit.write("a.txt", "a")
    file = tmp_path / "Dockerfile"
    file.write_text("FROM any\nCOPY a.txt /x")
    source = ImageSource(context=kit.context, dockerfile=file)
    assert await run(kit.backend, source, "cat /x") == "a"
    with pytest.raises(BuildError, match="is not in the build context"):
        await kit.backend.build(ImageSource(dockerfile=file))
