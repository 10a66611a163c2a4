"""Images that are used as they are, how they are pulled, and what is known of them."""

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from aiohttp import web

from plimsoll.core.errors import BuildError, TransferError
from plimsoll.core.ids import short_id
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.cli_config import DockerCliConfig
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint
from plimsoll.sandboxes.docker.files.tar_stream import (
    Tar,
    add_text,
    add_tree,
    tar_stream,
)
from plimsoll.sandboxes.docker.images.image_store import ImageStore
from plimsoll.sandboxes.protocol import ImageSource


@pytest.fixture
def images(engine: Daemon) -> ImageStore:
    return ImageStore(engine, {"HOME": "/nowhere"})


async def test_a_name_is_used_as_given(engine: Daemon, images: ImageStore):
    image = await images.build(ImageSource(reference="debian:12"))
    found = await engine.image("debian:12")
    assert found is not None
    assert image.key == image.reference == found.id
    assert (image.name, image.workdir, image.user) == ("debian:12", "/", "root")
    assert {"debian:12", found.id} <= images.held
    assert (await images.build(ImageSource(reference=found.id))).key == found.id


async def test_a_name_that_cannot_be_had_is_told_with_what_to_do(images: ImageStore):
    name = "registry.invalid/no/such:1"
    with pytest.raises(BuildError, match="does not have the image registry") as caught:
        await images.build(ImageSource(reference=name))
    assert f"docker pull {name}" in str(caught.value)
    with pytest.raises(BuildError, match="neither a Dockerfile nor"):
        await images.build(ImageSource())


async def test_using_a_built_image_is_told_to_the_engine(
    engine: Daemon, tmp_path: Path, images: ImageStore
):
    (tmp_path / "Dockerfile").write_text(f"FROM debian:12\nENV A={short_id()}\n")
    source = ImageSource(tmp_path, tmp_path / "Dockerfile")
    image = await images.build(source)
    built = await engine.image(image.name)
    await asyncio.sleep(0.01)
    await images.build(source)
    soon = await engine.image(image.name)
    await ImageStore(engine, {"HOME": "/nowhere"}).build(source)
    other = await engine.image(image.name)
    await engine.remove_image(image.name)
    assert built is not None and soon is not None and other is not None
    assert built.metadata == soon.metadata
    assert soon.metadata.last_tag_time < other.metadata.last_tag_time


class FakeEngine:
    """Answers as an engine that has no image and a registry to pull from."""

    def __init__(self) -> None:
        self.pulls: list[dict[str, str]] = []
        self.auths: list[str] = []
        self.has: set[str] = set()

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"})

    async def image(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name in self.has:
            return web.json_response({"Id": f"sha256:{name}"})
        return web.json_response({"message": f"No such image: {name}"}, status=404)

    async def create(self, request: web.Request) -> web.Response:
        self.pulls.append(dict(request.query))
        self.auths.append(request.headers.get("X-Registry-Auth", ""))
        await asyncio.sleep(0.1)
        name = request.query["fromImage"]
        if name == "private/image":
            return web.Response(text='{"status":"x"}\n{"error":"denied","errorDetail":{}}\n')
        tag = request.query["tag"]
        self.has.add(f"{name}:{tag}" if tag else name)
        return web.Response(text='{"status":"Pulling","id":"abc"}\n')


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[tuple[FakeEngine, Daemon]]:
    made = FakeEngine()
    app = web.Application()
    app.router.add_get("/version", made.version)
    app.router.add_get("/v1.41/images/{name:.+}/json", made.image)
    app.router.add_post("/v1.41/images/create", made.create)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "sock")).start()
    async with Daemon(Endpoint(f"unix://{tmp_path}/sock")) as engine:
        yield made, engine
    await runner.cleanup()


def config_with(folder: Path, auths: dict[str, str]) -> dict[str, str]:
    entries = {
        name: {"auth": base64.b64encode(text.encode()).decode()} for name, text in auths.items()
    }
    (folder / "config.json").write_text(json.dumps({"auths": entries, "credsStore": "x"}))
    return {"DOCKER_CONFIG": str(folder)}


async def test_what_is_wanted_by_many_is_pulled_once(fake: tuple[FakeEngine, Daemon]):
    registry, engine = fake
    images = ImageStore(engine, {"HOME": "/nowhere"})
    log = bytearray()
    wanted = [images.find("far/image:1", on_output=lambda _, d: log.extend(d)) for _ in range(5)]
    found = await asyncio.gather(*wanted)
    assert {image.key for image in found} == {"sha256:far/image:1"}
    assert registry.pulls == [{"fromImage": "far/image", "tag": "1", "platform": ""}]
    assert log == b"abc Pulling\n" * 5


@pytest.mark.parametrize(
    ("name", "image", "tag"),
    [
        ("plain", "plain", "latest"),
        ("host:5000/plain", "host:5000/plain", "latest"),
        ("host:5000/a/b:2", "host:5000/a/b", "2"),
        (f"a@sha256:{'0' * 64}", f"a@sha256:{'0' * 64}", ""),
    ],
)
async def test_a_name_is_split_as_docker_does(
    fake: tuple[FakeEngine, Daemon], name: str, image: str, tag: str
):
    registry, engine = fake
    with pytest.raises(BuildError, match="is not there") if tag == "latest" else nullcontext():
        await ImageStore(engine, {"HOME": "/nowhere"}).find(name)
    assert registry.pulls == [{"fromImage": image, "tag": tag, "platform": ""}]


async def test_passwords_of_the_docker_command_are_used_for_their_registry_alone(
    fake: tuple[FakeEngine, Daemon], tmp_path: Path
):
    registry, engine = fake
    auths = {"far.example.org:5000": "me:secret", "https://index.docker.io/v1/": "hub:word:s"}
    env = config_with(tmp_path, auths)
    images = ImageStore(engine, env)
    for name in ("far.example.org:5000/x:1", "some/image:1", "other.example.org/x:1"):
        await images.find(name)
    first, second, third = registry.auths
    told = json.loads(base64.urlsafe_b64decode(first))
    assert (told["username"], told["password"]) == ("me", "secret")
    assert json.loads(base64.urlsafe_b64decode(second))["password"] == "word:s"
    assert third == ""
    assert set(DockerCliConfig(env).logins()) == set(auths)


async def test_a_registry_that_refuses_is_told_with_its_words(fake: tuple[FakeEngine, Daemon]):
    _, engine = fake
    with pytest.raises(BuildError, match="could not pull it: denied;"):
        await ImageStore(engine, {"HOME": "/nowhere"}).find("private/image:1")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"credsStore": "desktop"}, "docker-credential-desktop is not asked"),
        ({"credHelpers": {"https://index.docker.io/v1/": "x"}}, "docker-credential-x is not asked"),
        (
            {"auths": {"https://index.docker.io/v1/": {"identitytoken": "t"}}},
            "an identity token is not asked",
        ),
        ({"credHelpers": {"other.example.org": "x"}}, None),
        ({}, None),
    ],
)
async def test_a_password_that_a_helper_keeps_is_said_not_to_be_used(
    fake: tuple[FakeEngine, Daemon], tmp_path: Path, config: dict[str, object], said: str | None
):
    _, engine = fake
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BuildError, match="denied") as caught:
        await ImageStore(engine, {"DOCKER_CONFIG": str(tmp_path)}).find("private/image:1")
    assert (said or "check the name, or get") in str(caught.value)


async def test_a_pull_that_takes_too_long_is_an_error(fake: tuple[FakeEngine, Daemon]):
    _, engine = fake
    with pytest.raises(BuildError, match="pulling it took longer than"):
        await ImageStore(engine, {"HOME": "/nowhere"}).find("slow/image:1", timeout=0.05)


async def test_a_tar_is_made_while_it_is_read():
    def write(tar: Tar) -> None:
        for number in range(50):
            add_text(tar, f"{number}", b"x" * 100_000)

    async with tar_stream(write) as reading:
        pieces = [piece async for piece in reading]
    assert max(map(len, pieces)) <= 1 << 20
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        assert len(tar.getnames()) == 50


async def test_a_file_that_cannot_be_read_is_named_and_not_taken_for_a_lost_engine(
    engine: Daemon, tmp_path: Path
):
    file = tmp_path / "vanished"

    def write(tar: Tar) -> None:
        add_tree(tar, [("vanished", file)])

    with pytest.raises(TransferError, match="vanished: No such file"):
        async with tar_stream(write) as tar:
            await engine.import_image(tar, f"plimsoll/test:{short_id()}", {})


async def test_a_tar_that_nobody_reads_to_its_end_stops_its_thread():
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(tar: Tar) -> None:
        try:
            for number in range(10_000):
                add_text(tar, f"{number}", b"x" * 100_000)
        finally:
            loop.call_soon_threadsafe(stopped.set)

    async with tar_stream(write) as pieces:
        await anext(pieces)
    async with asyncio.timeout(60):
        await stopped.wait()
