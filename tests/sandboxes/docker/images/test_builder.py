"""A Dockerfile is built once for equal inputs, and its errors name its own lines."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helpers import long_time, processes_with
from parts import need
from plimsoll.core.errors import BuildError
from plimsoll.core.ids import short_id
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.host_locks import HostLocks
from plimsoll.sandboxes.docker.images.build_input import BUILD_LABEL
from plimsoll.sandboxes.docker.images.build_methods import has_buildx
from plimsoll.sandboxes.docker.images.builder import BuildRequest
from plimsoll.sandboxes.docker.images.image_store import DockerImage, ImageStore
from plimsoll.sandboxes.docker.labels import from_docker, is_shared
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, Mount, OnOutput, Supplies
from plimsoll.testing.waiting import until


class Kit:
    """A build context, the daemon that builds it, and the output."""

    def __init__(self, daemon: Daemon, context: Path) -> None:
        self.daemon = daemon
        self.images = ImageStore(daemon, {"HOME": "/nowhere"})
        self.context = context
        self.log = b""
        context.mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def source(self, text: str, **more: object) -> ImageSource:
        file = self.write("Dockerfile", text)
        return ImageSource(self.context, file, **more)  # pyright: ignore[reportArgumentType]

    async def build(self, text: str, **more: object) -> DockerImage:
        self.log = b""
        return await self.images.build(self.source(text, **more), self.hear)

    async def fails(self, text: str, **more: object) -> str:
        with pytest.raises(BuildError) as caught:
            await self.build(text, **more)
        return str(caught.value)

    def hear(self, _: str, data: bytes) -> None:
        self.log += data

    async def order(self, **more: object) -> DockerImage:
        order = BuildRequest(self.context, self.context / "Dockerfile", **more)  # pyright: ignore[reportArgumentType]
        return await self.images.build_request(order, self.hear)


@pytest.fixture
async def kit(daemon: Daemon, tmp_path: Path) -> AsyncIterator[Kit]:
    made = Kit(daemon, tmp_path / "context")
    yield made
    for row in await daemon.images("plimsoll.shared=yes"):
        labels = from_docker(row.labels)
        if labels and labels.owner == this_process() and labels.ticket in ("assets", "image"):
            await daemon.call(
                "DELETE", f"/images/{row.id}", "remove an image", params={"force": "1"}
            )


@pytest.fixture
def once() -> str:
    """A RUN instruction that no earlier build had."""
    return f"RUN echo {short_id()}\n"


async def test_an_image_has_the_content_of_its_dockerfile(kit: Kit, once: str):
    kit.write("src/a.txt", "hello")
    image = await kit.build(
        f"FROM debian:12\n{once}WORKDIR /app\nCOPY src .\nENV A='b c'\nRUN cat a.txt\nUSER daemon\n"
    )
    assert b"hello" in kit.log
    assert (image.workdir, image.user, image.env["A"]) == ("/app", "daemon", "b c")
    assert "/usr/bin" in image.env["PATH"]
    found = await kit.daemon.image(image.reference)
    assert found is not None
    assert found.id == image.key
    assert is_shared(found.labels)
    assert from_docker(found.labels) is not None
    assert found.labels[BUILD_LABEL] == "yes"


async def test_an_equal_source_is_built_once_and_a_changed_one_again(kit: Kit, once: str):
    text = f"FROM debian:12\n{once}COPY . /app\n"
    kit.write("a", "1")
    first = await kit.build(text)
    assert kit.log
    again = await kit.build(text)
    assert (again, kit.log) == (first, b"")
    kit.write("a", "2")
    changed = await kit.build(text)
    (kit.context / "a").chmod(0o755)
    mode = await kit.build(text)
    kit.write("b", "")
    added = await kit.build(text)
    assert len({first.key, changed.key, mode.key, added.key}) == 4


async def test_ignored_files_do_not_change_the_tag_and_are_not_sent(kit: Kit, once: str):
    kit.write(".dockerignore", "*.log\nout\n!out/keep\n")
    kit.write("out/keep", "")
    kit.write("out/drop", "")
    kit.write("x.log", "1")
    text = f"FROM debian:12\n{once}WORKDIR /app\nCOPY . .\nRUN find . -type f | sort\n"
    first = await kit.build(text)
    assert b"\n./.dockerignore\n./Dockerfile\n./out/keep\n" in kit.log
    kit.write("x.log", "2")
    assert (await kit.build(text)).key == first.key


async def test_a_context_without_dockerignore_gets_none(kit: Kit, once: str):
    await kit.build(f"FROM debian:12\n{once}WORKDIR /app\nCOPY . .\nRUN find . -type f | sort\n")
    assert b"\n./Dockerfile\nRemoving" in kit.log


async def test_links_and_modes_are_preserved(kit: Kit, once: str):
    kit.write("run.sh", "#!/bin/sh\necho ran\n").chmod(0o755)
    (kit.context / "link").symlink_to("run.sh")
    os.link(kit.context / "run.sh", kit.context / "second")
    os.mkfifo(kit.context / "fifo")
    text = f"FROM debian:12\n{once}COPY . /a\nRUN /a/run.sh && readlink /a/link && /a/second\n"
    await kit.build(text)
    assert b"\nran\nrun.sh\nran\n" in kit.log


async def test_concurrent_builds_of_a_group_are_one_build(kit: Kit, once: str):
    source = kit.source(f"FROM debian:12\n{once}RUN sleep 1\n")
    logs = [bytearray() for _ in range(8)]

    def hear(log: bytearray) -> OnOutput:
        return lambda _, data: log.extend(data)

    built = await asyncio.gather(*(kit.images.build(source, hear(log)) for log in logs[:7]))
    last = await kit.images.build(source, hear(logs[7]))
    assert {image.key for image in built} == {last.key}
    assert all(log == logs[0] for log in logs[:7])
    assert logs[0].count(b"Successfully built") == 1
    assert not logs[7]


WORKER = """
import asyncio, sys
from pathlib import Path
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.images.image_store import ImageStore
from plimsoll.sandboxes.docker.host_locks import HostLocks
from plimsoll.sandboxes.protocol import ImageSource

async def main(url, home, context):
    async with Daemon(find_endpoint(url, None, {})) as daemon:
        images = ImageStore(daemon, {"HOME": "/nowhere"}, HostLocks(url, Path(home)))
        hear = lambda _, data: print(data.decode(), end="", flush=True)
        source = ImageSource(Path(context), Path(context, "Dockerfile"))
        print("key", (await images.build(source, hear)).key)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_concurrent_builds_of_processes_are_one_build(
    kit: Kit, once: str, docker_daemon: str, tmp_path: Path
):
    kit.write("Dockerfile", f"FROM debian:12\n{once}RUN sleep 3; head -c 32 /dev/urandom > /x\n")
    words = [sys.executable, "-c", WORKER, docker_daemon, str(tmp_path / "home"), str(kit.context)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, env=env)
        for _ in range(3)
    ]
    logs = [(await worker.communicate())[0] for worker in workers]
    assert sum(log.count(b"Successfully built") for log in logs) == 1
    assert len({log.rpartition(b"key ")[2] for log in logs}) == 1
    assert sum(b"waiting for another process of this host" in log for log in logs) == 2


async def test_waiters_of_a_failed_build_fail_with_its_error(kit: Kit, once: str, tmp_path: Path):
    """Otherwise eight processes would build a broken Dockerfile one by one."""
    source = kit.source(f"FROM debian:12\n{once}RUN sleep 2; echo $$; exit 3\n")
    logs = [bytearray() for _ in range(3)]

    async def build(log: bytearray) -> None:
        locks = HostLocks(str(kit.daemon.endpoint), tmp_path / "home")
        images = ImageStore(kit.daemon, {"HOME": "/nowhere"}, locks)
        with pytest.raises(BuildError, match=r"Dockerfile:3: .* failed .exit 3."):
            await images.build(source, lambda _, data: log.extend(data))

    await asyncio.gather(*map(build, logs))
    assert sum(log.count(b"Running in") for log in logs) == 2  # one build, of two steps
    await build(logs[0])
    assert logs[0].count(b"RUN sleep 2")  # a later build tries again


async def test_a_waiter_takes_over_the_build_of_a_killed_process(
    kit: Kit, docker_daemon: str, tmp_path: Path
):
    word, home = short_id(), tmp_path / "home"
    kit.write("Dockerfile", f"FROM debian:12\nRUN : {word}; sleep 4\n")
    words = [sys.executable, "-c", WORKER, docker_daemon, str(home), str(kit.context)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = await asyncio.create_subprocess_exec(*words, stdout=subprocess.DEVNULL, env=env)
    assert await becomes(True, kit.daemon, word)
    source = ImageSource(kit.context, kit.context / "Dockerfile")
    images = ImageStore(kit.daemon, {"HOME": "/nowhere"}, HostLocks(docker_daemon, home))
    building = asyncio.create_task(images.build(source, kit.hear))
    await until(lambda: b"another process" in kit.log, 60)
    worker.kill()
    await worker.wait()
    await building
    assert b"Successfully built" in kit.log


async def test_a_caller_that_leaves_does_not_end_the_build_for_others(kit: Kit, once: str):
    source = kit.source(f"FROM debian:12\n{once}RUN sleep 3; echo slept\n")
    early, log = bytearray(), bytearray()
    first = asyncio.create_task(kit.images.build(source, lambda _, data: early.extend(data)))
    await until(lambda: b"RUN sleep" in early, 60)
    second = asyncio.create_task(kit.images.build(source, lambda _, data: log.extend(data)))
    await until(lambda: log, 60)
    first.cancel()
    await second
    assert first.cancelled()
    assert b"Step 1/" in log and b"slept" in log


async def is_running(daemon: Daemon, word: str) -> bool:
    """True if the command of a running container contains a word."""
    rows = await daemon.get("/containers/json", list[dict[str, object]], "list")
    return any(word in str(row["Command"]) for row in rows)


async def becomes(running: bool, daemon: Daemon, word: str) -> bool:
    for _ in range(1200):
        if await is_running(daemon, word) is running:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_cancelled_or_timed_out_build_leaves_no_container(kit: Kit):
    word = short_id()
    text = f"FROM debian:12\n\nRUN : {word}; sleep 600\n"
    task = asyncio.create_task(kit.build(text))
    assert await becomes(True, kit.daemon, word)
    task.cancel()
    await asyncio.wait([task])
    assert await becomes(False, kit.daemon, word)

    began = time.monotonic()
    message = await kit.fails(text, build_timeout=8.0)
    assert time.monotonic() - began < 60
    assert message.endswith("Dockerfile:3: the build took longer than 8 s (build_timeout_sec)")
    assert await becomes(False, kit.daemon, word)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RUN echo a && \\\n  echo why >&2; exit 3", ":3: RUN echo a && echo why >&2; exit 3 "
         "failed (exit 3): why"),
        ("RUN echo only; false", ":3: RUN echo only; false failed (exit 1): only"),
        ('RUN ["false"]', ':3: RUN ["false"] failed (exit 1)'),
        ("COPY nothing /", ":3: COPY nothing /: COPY failed: file not found"),
        ("USER nosuch\nRUN true", ":4: RUN true: unable to find user nosuch"),
    ],
)  # fmt: skip
async def test_a_failing_instruction_is_reported_with_its_line(kit: Kit, text: str, message: str):
    error = await kit.fails(f"# a comment\nFROM debian:12\n{text}\nRUN never\n")
    assert f"{kit.context}/Dockerfile{message}" in error


async def test_an_invalid_dockerfile_is_reported_with_its_line(kit: Kit):
    assert "Dockerfile:2: unknown instruction RUNN" in await kit.fails("FROM debian:12\nRUNN x\n")
    with pytest.raises(BuildError, match="nothing: No such file"):
        await kit.images.build(ImageSource(kit.context, kit.context / "nothing"))
    kit.write("Dockerfile", "FROM debian:12\n")
    kit.write(".dockerignore", "[\n")
    with pytest.raises(BuildError, match="dockerignore:1: not a pattern"):
        await kit.images.build(ImageSource(kit.context, kit.context / "Dockerfile"))


async def test_a_missing_base_image_is_reported_with_the_remedy(kit: Kit):
    name = "registry.invalid/no/such:1"
    error = await kit.fails(f"FROM debian:12 AS first\nRUN true\nFROM {name}\n")
    assert f"Dockerfile:3: FROM {name}: the Docker daemon at" in error
    assert "could not pull it" in error
    assert "docker load" in error
    error = await kit.fails(f"FROM debian:12\nCOPY --from={name} /a /b\n")
    assert "Dockerfile:2: COPY" in error


async def test_stages_and_arguments_work(kit: Kit, once: str):
    text = (
        "ARG BASE=12\nARG UNUSED\nFROM debian:${BASE} AS build\n"
        f"ARG WORD=plain\nARG TARGETARCH\n{once}RUN echo $WORD-$TARGETARCH > /made\n"
        "FROM --platform=$BUILDPLATFORM debian:bookworm-slim\nCOPY --from=build /made /made\n"
        "RUN cat /made\n"
    )
    kit.write("Dockerfile", text)
    arch = kit.daemon.version.arch
    last = await kit.order()
    assert f"\nplain-{arch}\n".encode() in kit.log
    kit.log = b""
    other = await kit.order(args={"WORD": "other"})
    assert f"\nother-{arch}\n".encode() in kit.log
    stage = await kit.order(target="build")
    assert len({last.key, other.key, stage.key}) == 3
    with pytest.raises(BuildError, match="there is no stage elsewhere"):
        await kit.order(target="elsewhere")


@pytest.fixture
def supplies(tmp_path: Path) -> Supplies:
    """A folder with a program that shadows the system's `id`."""
    folder = tmp_path / "supplies"
    (folder / "shims").mkdir(parents=True)
    (folder / "shims/id").write_text("#!/bin/sh\necho supplied $WORD\n")
    (folder / "shims/id").chmod(0o755)
    mounts = (Mount(folder, "/opt/supplies"), Mount(folder / "shims/id", "/opt/one/id"))
    return Supplies(mounts, {"WORD": 'a "$HOME" \\ c'}, "/opt/supplies/shims", short_id())


async def test_a_build_has_its_supplies_in_every_stage(kit: Kit, once: str, supplies: Supplies):
    text = (
        f"FROM debian:12 AS a\n{once}RUN id\nENV PATH=/usr/bin:/bin\nRUN id; /opt/one/id\n"
        "FROM a\nRUN id\nFROM scratch AS empty\nCOPY --from=a /etc/hostname /\n"
        "FROM debian:bookworm-slim\nRUN id\n"
    )
    image = await kit.build(text, supplies=supplies)
    assert kit.log.count(b'\nsupplied a "$HOME" \\ c') == 5
    assert "WORD" not in image.env
    assert "supplies" not in image.env["PATH"]
    assert await kit.build(text, supplies=supplies) == image
    await kit.build("FROM debian:12\nRUN id\n")
    assert b"supplied" not in kit.log
    error = await kit.fails("FROM debian:12\nRUN id; exit 5\n", supplies=supplies)
    assert "Dockerfile:2: RUN id; exit 5 failed (exit 5): supplied" in error


def make_mirror(folder: Path) -> Path:
    work, mirror = folder / "work", folder / "assets/mirror.git"
    work.mkdir()
    (work / "file").write_text("cloned\n")
    git = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(mirror)], check=True)
    return mirror


async def test_a_staged_repository_is_cloned_without_a_network(kit: Kit, tmp_path: Path, once: str):
    mirror = make_mirror(tmp_path)
    env = {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "url./opt/assets/mirror.git.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://example.invalid/x.git",
        "GIT_CONFIG_KEY_1": "safe.directory",
        "GIT_CONFIG_VALUE_1": "*",
    }
    supplies = Supplies((Mount(mirror.parent, "/opt/assets"),), env, "", short_id())
    clone = "RUN git clone https://example.invalid/x.git /x && cat /x/file\n"
    await kit.build(f"FROM debian:12\n{once}{clone}", supplies=supplies)
    assert b"\ncloned\n" in kit.log
    assert "example.invalid" in await kit.fails(f"FROM debian:12\n{once}{clone}")


NEEDS = [
    ("RUN --mount=type=tmpfs,target=/t true", "RUN --mount"),
    ("RUN <<END\ntrue\nEND", "RUN <<END"),
    ("COPY --chmod=700 a /a", "COPY --chmod"),
    ("COPY --link a /a", "COPY --link"),
    ("ADD --checksum=sha256:0 a /a", "ADD --checksum"),
    ("ADD https://example.invalid/x.git /x", "ADD of a git repository"),
]


@pytest.mark.parametrize(("text", "named"), NEEDS)
async def test_a_buildkit_feature_is_named_if_buildx_is_missing(
    kit: Kit, text: str, named: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    has_buildx.cache_clear()
    error = await kit.fails(f"FROM debian:12\n{text}\n")
    has_buildx.cache_clear()
    assert f"Dockerfile:2: {named} needs BuildKit" in error
    assert "buildx" in error


async def test_the_standard_syntax_line_needs_no_buildkit(kit: Kit, once: str):
    await kit.build(f"# syntax=docker/dockerfile:1\nFROM debian:12\n{once}")
    monkey = f"# syntax=example.org/other\nFROM debian:12\n{once}"
    if not has_buildx():
        assert "Dockerfile:1: # syntax=example.org/other needs" in await kit.fails(monkey)


@pytest.fixture
def buildx() -> None:
    has_buildx.cache_clear()
    there = shutil.which("docker") is not None and has_buildx()
    need("buildx", None if there else "`docker buildx` is not installed")


async def test_buildx_builds_buildkit_features(
    kit: Kit, buildx: None, once: str, supplies: Supplies
):
    kit.write("a", "hello")
    kit.write(".dockerignore", "secret\n")
    kit.write("secret", "")
    text = (
        f"FROM debian:12\n{once}WORKDIR /app\nCOPY --chmod=741 . .\n"
        "RUN --mount=type=tmpfs,target=/t touch /t/x && stat -c %a a && id && ls -A\n"
    )
    image = await kit.build(text, supplies=supplies)
    assert b" 741\n" in kit.log
    assert b" supplied a " in kit.log
    assert b" secret\n" not in kit.log
    assert image.workdir == "/app"
    found = await kit.daemon.image(image.key)
    assert found is not None
    assert is_shared(found.labels)
    assert await kit.build(text, supplies=supplies) == image


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "RUN echo a; \\\n  echo why; exit 3",
            ":4: RUN echo a; echo why; exit 3 failed (exit 3): why",
        ),
        ("COPY nothing /", ":4: COPY nothing /: "),
    ],
)
async def test_buildx_failures_are_reported_with_their_line(
    kit: Kit, buildx: None, once: str, text: str, message: str
):
    start = f"FROM debian:12\n{once}RUN --mount=type=tmpfs,target=/t true\n"
    assert f"Dockerfile{message}" in await kit.fails(f"{start}{text}\nRUN never\n")


async def test_a_cancelled_build_ends_buildx(kit: Kit, buildx: None):
    seconds = long_time()
    text = f"FROM debian:12\nRUN --mount=type=tmpfs,target=/t sleep {seconds}\n"
    message = await kit.fails(text, build_timeout=15.0)
    assert message.endswith("Dockerfile:2: the build took longer than 15 s (build_timeout_sec)")
    await until(lambda: not processes_with(seconds), 60)
