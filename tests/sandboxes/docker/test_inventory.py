"""The resources of Plimsoll on a Docker daemon, and which of them are reaped."""

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from docker_calls import exit_code, kill
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, Owner, short_id
from plimsoll.runs.cleanup import BackendItems, Inventories, choose_all, choose_run
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint, find_endpoint
from plimsoll.sandboxes.docker.inventory import DockerInventory
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, SandboxSpec
from plimsoll.sandboxes.reaper import (
    RemovalResult,
    Resource,
    reap,
    remove_all,
    select_removable,
)

ELSEWHERE = Owner("elsewhere~00000000", 7, "boot:1")
DEAD = Owner("elsewhere~00000000", 8, "boot:1")
"""An owner that is dead only for these tests: other processes reap on this daemon, too."""
LONG = 7200.0


@dataclass
class Bench:
    """A daemon, and a run of the test with its objects."""

    daemon: Daemon
    run: str = field(default_factory=lambda: f"test-{short_id()}")
    images: list[str] = field(default_factory=list[str])

    @property
    def inventory(self) -> DockerInventory:
        return DockerInventory(self.daemon)

    def labels(
        self, owner: Owner, *, seconds: float = LONG, shared: bool = False
    ) -> dict[str, str]:
        labels = Labels(self.run, "task.1", owner, time.time() + seconds)
        return to_docker(labels, shared=shared)

    async def container(
        self,
        owner: Owner | None,
        *,
        image: str = "debian:12",
        host: dict[str, object] | None = None,
        **more: float,
    ) -> str:
        """Create a container without starting it; without an owner it is not Plimsoll's."""
        labels = {} if owner is None else self.labels(owner, **more)
        config = {"Image": image, "Cmd": ["sleep", "600"], "Labels": labels, "HostConfig": host}
        return await self.daemon.create_container(config, f"{self.run}-{short_id()}")

    async def image(self, owner: Owner, *, seconds: float = LONG, name: str = "") -> str:
        """Create an empty image. Returns its name."""
        name = name or f"plimsoll/{self.run}:{short_id()}"
        labels = self.labels(owner, seconds=seconds, shared=True)
        await self.daemon.import_image(_tar(short_id()), name, labels)
        self.images.append(name)
        return name

    async def reap(self) -> RemovalResult:
        """Reap the run, at a time one hour from now."""
        doomed_ones = select_removable(
            await self.mine(), time.time() + 3600, lambda owner: owner != DEAD
        )
        return await remove_all(self.inventory, doomed_ones)

    async def mine(self) -> list[Resource]:
        return [i for i in await self.inventory.items() if i.labels.run == self.run]

    async def left(self) -> set[str]:
        """The ids of all objects of the run."""
        return {item.id for item in await self.mine()}


def _tar(text: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("word")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def endpoint(docker_daemon: str) -> Endpoint:
    return find_endpoint(docker_daemon, None, os.environ)


@pytest.fixture
async def bench(endpoint: Endpoint) -> AsyncIterator[Bench]:
    async with Daemon(endpoint) as daemon:
        bench = Bench(daemon)
        yield bench
        for row in await daemon.containers():
            if any(bench.run in name for name in row.names):
                await daemon.remove(row.id)
        for item in await bench.mine():
            if item.kind != "image":
                await bench.inventory.remove(item)
        for name in bench.images:
            await daemon.remove_image(name)


async def test_reaping_removes_objects_of_dead_owners_only(bench: Bench):
    dead = await bench.container(DEAD)
    late = await bench.container(ELSEWHERE, seconds=600)
    mine = await bench.container(this_process())
    elsewhere = await bench.container(ELSEWHERE)
    foreign = await bench.container(None)
    assert await bench.left() == {dead, late, mine, elsewhere}
    await bench.reap()
    assert await bench.left() == {mine, elsewhere}
    assert await bench.daemon.inspect(foreign) is not None
    assert await bench.daemon.inspect(dead) is None
    assert await bench.daemon.inspect(late) is None


async def test_an_exited_sandbox_of_another_host_is_reaped_and_a_service_is_not(
    bench: Bench,
):
    month = 30 * 24 * 3600.0
    async with DockerBackend(DockerOptions(host=str(bench.daemon.endpoint))) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        labels = Labels(bench.run, "task.1", ELSEWHERE, time.time() + month)
        ended, runs = [await docker.create(image, SandboxSpec(labels)) for _ in range(2)]
        service = await bench.container(ELSEWHERE, seconds=month)
        await bench.daemon.start(service)
        for one in (ended.id, service):
            await kill(bench.daemon, one)
            await exit_code(bench.daemon, one, 30)
        items = {item.name: item for item in await bench.mine()}
        assert abs((items[ended.id].ended or 0) - time.time()) < 600
        assert [name for name, item in items.items() if item.ended is not None] == [ended.id]
        late = select_removable(list(items.values()), time.time() + 2 * 3600)
        assert [item.name for item in late] == [ended.id]
        assert (await runs.exec("true")).ok


async def test_networks_and_volumes_are_reaped_with_their_containers(bench: Bench):
    daemon, names = bench.daemon, [f"{bench.run}-a", f"{bench.run}-b"]
    for name, owner in zip(names, (DEAD, this_process()), strict=True):
        network = await daemon.create_network(name, bench.labels(owner), internal=True)
        await daemon.create_volume(name, bench.labels(owner))
        host: dict[str, object] = {"NetworkMode": network, "Binds": [f"{name}:/v"]}
        await daemon.start(await bench.container(owner, host=host))
    kinds = sorted(item.kind for item in await bench.mine())
    assert kinds == ["network", "network", "sandbox", "sandbox", "volume", "volume"]
    reaped = await bench.reap()
    assert reaped.failed == ()
    left = await bench.mine()
    assert sorted(item.kind for item in left) == ["network", "sandbox", "volume"]
    assert {item.labels.owner for item in left} == {this_process()}
    (user,) = [item.id for item in left if item.kind == "sandbox"]
    assert all(item.used_by == (user,) for item in left if item.kind != "sandbox")


async def test_expiry_alone_does_not_reap_objects_of_a_living_local_owner(bench: Bench):
    daemon, me = bench.daemon, this_process()
    elsewhere = Owner("elsewhere~00000000", 7, "b:1")
    for owner, name in ((me, f"{bench.run}-mine"), (elsewhere, f"{bench.run}-far")):
        await daemon.create_volume(name, bench.labels(owner, seconds=600))
    mine = await bench.container(me, seconds=600)
    await daemon.start(mine)
    await bench.container(elsewhere, seconds=600)
    reaped = await bench.reap()
    assert reaped.failed == ()
    assert await bench.left() == {mine, f"{bench.run}-mine"}


async def test_anonymous_volumes_are_removed_with_their_container(bench: Bench):
    anonymous = {"Mounts": [{"Type": "volume", "Target": "/data"}]}
    made = await bench.container(DEAD, host=dict(anonymous))
    found = await bench.daemon.inspect(made)
    assert found is not None
    assert found.mounts
    await bench.reap()
    assert await bench.daemon.volume(found.mounts[0].name) is None


async def test_shared_objects_outlive_their_owner_until_expiry(bench: Bench):
    daemon = bench.daemon
    kept, expired, used = (f"{bench.run}-{n}" for n in ("kept", "expired", "used"))
    await daemon.create_volume(kept, bench.labels(DEAD, shared=True))
    for name in (expired, used):
        await daemon.create_volume(name, bench.labels(DEAD, shared=True, seconds=600))
    user = await bench.container(this_process(), host={"Binds": [f"{used}:/v"]})
    image, old = await bench.image(DEAD), await bench.image(DEAD, seconds=600)
    await bench.reap()
    assert {item.name or item.id for item in await bench.mine() if item.kind != "sandbox"} == {
        kept,
        used,
        image,
    }
    assert await daemon.image(old) is None
    await daemon.remove(user)
    await bench.reap()
    assert await daemon.volume(used) is None


async def test_a_container_of_a_shared_image_is_not_shared(bench: Bench):
    image = await bench.image(this_process())
    dead = await bench.container(DEAD, image=image)
    assert dead in await bench.left()
    await bench.reap()
    assert dead not in await bench.left()


async def test_a_users_container_of_a_plimsoll_image_is_not_reaped(bench: Bench):
    image = await bench.image(DEAD, seconds=600)
    theirs = await bench.container(None, image=image)
    items = await bench.mine()
    assert theirs not in {item.id for item in items}
    (item,) = items
    (user,) = item.used_by
    assert user.startswith("container ")
    assert (await bench.reap()).removed == ()
    choice = choose_all(
        Inventories((BackendItems(bench.inventory, tuple(items)),), {}, time.time())
    )
    assert list(choice.items) == []
    (left,) = choice.left
    assert left.why == f"used by {user}"


async def test_an_image_with_a_users_tag_is_kept(bench: Bench):
    image = await bench.image(DEAD, seconds=600)
    other = f"keepsake-{bench.run}:1"
    await bench.daemon.tag(image, other)
    bench.images.append(other)
    await bench.reap()
    (item,) = await bench.mine()
    assert item.used_by == (f"the name {other}",)
    await bench.daemon.remove_image(other)
    await bench.reap()
    assert await bench.mine() == []


async def test_an_image_with_several_plimsoll_tags_is_removed(bench: Bench):
    image = await bench.image(DEAD, seconds=600)
    await bench.daemon.tag(image, f"plimsoll/{bench.run}:second")
    await bench.reap()
    assert await bench.mine() == []


async def test_removing_a_run_keeps_shared_objects(bench: Bench):
    await bench.daemon.create_volume(f"{bench.run}-v", bench.labels(this_process()))
    await bench.container(this_process())
    image = await bench.image(this_process())
    other = Bench(bench.daemon)
    theirs = await other.container(this_process())
    inventories = Inventories(
        (BackendItems(bench.inventory, tuple(await bench.inventory.items())),), {}, time.time()
    )
    ends: list[str] = []
    choice = choose_run(inventories, bench.run)
    await choice.carry_out(lambda _, item, why: ends.append(f"{item.kind}{why}"))
    assert ends == ["sandbox", "volume"]
    assert choice.shared == 1
    assert [item.name for item in await bench.mine()] == [image]
    assert await other.left() == {theirs}
    await bench.daemon.remove(theirs)


async def test_removing_a_missing_object_is_no_error(bench: Bench):
    await bench.container(DEAD)
    await bench.daemon.create_volume(f"{bench.run}-v", bench.labels(DEAD))
    await bench.daemon.create_network(f"{bench.run}-n", bench.labels(DEAD))
    await bench.image(DEAD)
    items = await bench.mine()
    assert len(items) == 4
    for _ in range(2):
        for item in items:
            await bench.inventory.remove(item)


async def test_two_concurrent_reapers_succeed(bench: Bench):
    for _ in range(6):
        await bench.daemon.start(await bench.container(DEAD))
    both = await asyncio.gather(bench.reap(), bench.reap())
    assert [reaped.failed for reaped in both] == [(), ()]
    assert await bench.left() == set()


async def test_sixteen_running_containers_are_reaped_in_a_few_seconds(bench: Bench):
    made = [await bench.container(DEAD) for _ in range(16)]
    await asyncio.gather(*(bench.daemon.start(one) for one in made))
    began = time.monotonic()
    await bench.reap()
    assert time.monotonic() - began < 60  # removed one by one, each would take up to 10 s
    assert await bench.left() == set()


OWNER = """
import asyncio, os, sys, time
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.host.owners import this_process

async def main():
    labels = to_docker(Labels(sys.argv[2], "task.1", this_process(), time.time() + 600))
    async with Daemon(find_endpoint(sys.argv[1], None, os.environ)) as daemon:
        config = {"Image": "debian:12", "Cmd": ["sleep", "600"], "Labels": labels}
        made = await daemon.create_container(config, sys.argv[2] + "-live")
        await daemon.start(made)
    print(made, flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


def _start(args: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_containers_of_a_living_process_are_kept(bench: Bench, docker_daemon: str):
    with _start([docker_daemon, bench.run]) as process:
        assert process.stdout is not None
        made = (await asyncio.to_thread(process.stdout.readline)).strip()
        await reap(bench.inventory)
        (item,) = await bench.mine()
        assert (item.id, item.state) == (made, "running")
        process.kill()
    await reap(bench.inventory)
    assert await bench.mine() == []


async def test_a_missing_daemon_is_one_clear_error():
    url = "tcp://127.0.0.1:1"
    with pytest.raises(SandboxUnavailable, match="cannot be reached"):
        async with DockerInventory(Daemon(find_endpoint(url, None, {}))) as inventory:
            await inventory.items()
