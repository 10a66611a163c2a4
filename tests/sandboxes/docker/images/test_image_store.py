"""Images used by name: found, pulled, and with their settings; and tar streams."""

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
def images(daemon: Daemon) -> ImageStore:
    return ImageStore(daemon, {"HOME": "/nowhere"})


async def test_an_image_is_found_by_name(daemon: Daemon, images: ImageStore):
    image = await images.build(ImageSource(reference="debian:12"))
    found = await daemon.image("debian:12")
    assert found is not None
    assert image.key == image.reference == found.id
    assert (image.name, image.workdir, image.user) == ("debian:12", "/", "root")
    assert {"debian:12", found.id} <= images.in_use
    assert (await images.build(ImageSource(reference=found.id))).key == found.id


async def test_a_missing_image_is_reported_with_the_remedy(images: ImageStore):
    name = "registry.invalid/no/such:1"
    with pytest.raises(BuildError, match="does not have the image registry") as caught:
        await images.build(ImageSource(reference=name))
    assert f"docker pull {name}" in str(caught.value)
    with pytest.raises(BuildError, match=r"'No:Name' is not the name of an image: .*invalid ref"):
        await images.build(ImageSource(reference="No:Name"))
    with pytest.raises(BuildError, match="neither a Dockerfile nor"):
        await images.build(ImageSource())


async def test_the_use_of_a_built_image_is_recorded_on_the_daemon(
    daemon: Daemon, tmp_path: Path, images: ImageStore
):
    (tmp_path / "Dockerfile").write_text(f"FROM debian:12\nENV A={short_id()}\n")
    source = ImageSource(tmp_path, tmp_path / "Dockerfile")
    image = await images.build(source)
    built = await daemon.image(image.name)
    await asyncio.sleep(0.01)
    await images.build(source)
    soon = await daemon.image(image.name)
    await ImageStore(daemon, {"HOME": "/nowhere"}).build(source)
    other = await daemon.image(image.name)
    await daemon.remove_image(image.name)
    assert built is not None and soon is not None and other is not None
    assert built.metadata == soon.metadata
    assert soon.metadata.last_tag_time < other.metadata.last_tag_time


class FakeDaemon:
    """A fake daemon without images, with a registry to pull from."""

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
async def fake(tmp_path: Path) -> AsyncIterator[tuple[FakeDaemon, Daemon]]:
    made = FakeDaemon()
    app = web.Application()
    app.router.add_get("/version", made.version)
    app.router.add_get("/v1.41/images/{name:.+}/json", made.image)
    app.router.add_post("/v1.41/images/create", made.create)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "sock")).start()
    async with Daemon(Endpoint(f"unix://{tmp_path}/sock")) as daemon:
        yield made, daemon
    await runner.cleanup()


def config_with(folder: Path, auths: dict[str, str]) -> dict[str, str]:
    entries = {
        name: {"auth": base64.b64encode(text.encode()).decode()} for name, text in auths.items()
    }
    (folder / "config.json").write_text(json.dumps({"auths": entries, "credsStore": "x"}))
    return {"DOCKER_CONFIG": str(folder)}


async def test_concurrent_pulls_of_an_image_are_one_pull(fake: tuple[FakeDaemon, Daemon]):
    registry, daemon = fake
    images = ImageStore(daemon, {"HOME": "/nowhere"})
    log = bytearray()
    pulls = [images.find("far/image:1", on_output=lambda _, d: log.extend(d)) for _ in range(5)]
    found = await asyncio.gather(*pulls)
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
async def test_a_name_is_split_like_docker_does(
    fake: tuple[FakeDaemon, Daemon], name: str, image: str, tag: str
):
    registry, daemon = fake
    with (
        pytest.raises(BuildError, match="ended without the image")
        if tag == "latest"
        else nullcontext()
    ):
        await ImageStore(daemon, {"HOME": "/nowhere"}).find(name)
    assert registry.pulls == [{"fromImage": image, "tag": tag, "platform": ""}]


async def test_docker_logins_are_used_only_for_their_registry(
    fake: tuple[FakeDaemon, Daemon], tmp_path: Path
):
    registry, daemon = fake
    auths = {"far.example.org:5000": "me:secret", "https://index.docker.io/v1/": "hub:word:s"}
    env = config_with(tmp_path, auths)
    images = ImageStore(daemon, env)
    for name in ("far.example.org:5000/x:1", "some/image:1", "other.example.org/x:1"):
        await images.find(name)
    first, second, third = registry.auths
    login = json.loads(base64.urlsafe_b64decode(first))
    assert (login["username"], login["password"]) == ("me", "secret")
    assert json.loads(base64.urlsafe_b64decode(second))["password"] == "word:s"
    assert third == ""
    assert set(DockerCliConfig(env).logins()) == set(auths)


async def test_a_refusal_of_the_registry_is_reported(fake: tuple[FakeDaemon, Daemon]):
    _, daemon = fake
    with pytest.raises(BuildError, match="could not pull it: denied;"):
        await ImageStore(daemon, {"HOME": "/nowhere"}).find("private/image:1")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"credsStore": "desktop"}, "docker-credential-desktop is not used"),
        ({"credHelpers": {"https://index.docker.io/v1/": "x"}}, "docker-credential-x is not used"),
        (
            {"auths": {"https://index.docker.io/v1/": {"identitytoken": "t"}}},
            "an identity token is not used",
        ),
        ({"credHelpers": {"other.example.org": "x"}}, None),
        ({}, None),
    ],
)
async def test_an_unused_credential_helper_is_named(
    fake: tuple[FakeDaemon, Daemon], tmp_path: Path, config: dict[str, object], message: str | None
):
    _, daemon = fake
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BuildError, match="denied") as caught:
        await ImageStore(daemon, {"DOCKER_CONFIG": str(tmp_path)}).find("private/image:1")
    assert (message or "check the name, or load") in str(caught.value)


async def test_a_pull_that_takes_too_long_is_an_error(fake: tuple[FakeDaemon, Daemon]):
    _, daemon = fake
    with pytest.raises(BuildError, match="pulling it took longer than"):
        await ImageStore(daemon, {"HOME": "/nowhere"}).find("slow/image:1", timeout=0.05)


async def test_a_tar_is_written_while_it_is_read():
    def write(tar: Tar) -> None:
        for number in range(50):
            add_text(tar, f"{number}", b"x" * 100_000)

    async with tar_stream(write) as reading:
        pieces = [piece async for piece in reading]
    assert max(map(len, pieces)) <= 1 << 20
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        assert len(tar.getnames()) == 50


async def test_an_unreadable_file_is_named_instead_of_a_lost_daemon(daemon: Daemon, tmp_path: Path):
    file = tmp_path / "vanished"

    def write(tar: Tar) -> None:
        add_tree(tar, [("vanished", file)])

    with pytest.raises(TransferError, match="vanished: No such file"):
        async with tar_stream(write) as tar:
            await daemon.import_image(tar, f"plimsoll/test:{short_id()}", {})


async def test_an_abandoned_tar_stops_its_thread():
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
