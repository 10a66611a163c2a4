"""What is ours on a Docker engine, who is reaped there and who is left."""

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

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, Owner, short_id
from plimsoll.runs.cleanup import Shelf, Stock, choose_all, choose_run
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
"""Dead to these tests alone: others on the engine reap too, and would come before them."""
LONG = 7200.0


@dataclass
class Bench:
    """An engine, a run of the test's own, and what was made in it."""

    engine: Daemon
    run: str = field(default_factory=lambda: f"test-{short_id()}")
    images: list[str] = field(default_factory=list[str])

    @property
    def inventory(self) -> DockerInventory:
        return DockerInventory(self.engine)

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
        """A container that is not started; without an owner it is somebody else's."""
        labels = {} if owner is None else self.labels(owner, **more)
        config = {"Image": image, "Cmd": ["sleep", "600"], "Labels": labels, "HostConfig": host}
        return await self.engine.create_container(config, f"{self.run}-{short_id()}")

    async def image(self, owner: Owner, *, seconds: float = LONG, name: str = "") -> str:
        """An image with nothing in it; its name."""
        name = name or f"plimsoll/{self.run}:{short_id()}"
        labels = self.labels(owner, seconds=seconds, shared=True)
        await self.engine.import_image(_tar(short_id()), name, labels)
        self.images.append(name)
        return name

    async def reap(self) -> RemovalResult:
        """Reap the run, as an hour from now."""
        doomed_ones = select_removable(
            await self.mine(), time.time() + 3600, lambda owner: owner != DEAD
        )
        return await remove_all(self.inventory, doomed_ones)

    async def mine(self) -> list[Resource]:
        return [i for i in await self.inventory.items() if i.labels.run == self.run]

    async def left(self) -> set[str]:
        """Ids of all of the run."""
        return {item.id for item in await self.mine()}


def _tar(text: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("word")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def endpoint(docker_engine: str) -> Endpoint:
    return find_endpoint(docker_engine, None, os.environ)


@pytest.fixture
async def bench(endpoint: Endpoint) -> AsyncIterator[Bench]:
    async with Daemon(endpoint) as engine:
        bench = Bench(engine)
        yield bench
        for row in await engine.containers():
            if any(bench.run in name for name in row.names):
                await engine.remove(row.id)
        for item in await bench.mine():
            if item.kind != "image":
                await bench.inventory.remove(item)
        for name in bench.images:
            await engine.remove_image(name)


async def test_reaping_takes_what_dead_owners_left_and_leaves_the_others(bench: Bench):
    dead = await bench.container(DEAD)
    late = await bench.container(ELSEWHERE, seconds=600)
    mine = await bench.container(this_process())
    elsewhere = await bench.container(ELSEWHERE)
    foreign = await bench.container(None)
    assert await bench.left() == {dead, late, mine, elsewhere}
    await bench.reap()
    assert await bench.left() == {mine, elsewhere}
    assert await bench.engine.inspect(foreign) is not None
    assert await bench.engine.inspect(dead) is None
    assert await bench.engine.inspect(late) is None


async def test_a_sandbox_that_ended_with_its_owner_elsewhere_is_reaped_and_a_service_is_not(
    bench: Bench,
):
    month = 30 * 24 * 3600.0
    async with DockerBackend(DockerOptions(host=str(bench.engine.endpoint))) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        labels = Labels(bench.run, "task.1", ELSEWHERE, time.time() + month)
        ended, runs = [await docker.create(image, SandboxSpec(labels)) for _ in range(2)]
        service = await bench.container(ELSEWHERE, seconds=month)
        await bench.engine.start(service)
        for one in (ended.id, service):
            await bench.engine.kill(one)
            await bench.engine.wait(one, 30)
        items = {item.name: item for item in await bench.mine()}
        assert abs((items[ended.id].ended or 0) - time.time()) < 600
        assert [name for name, item in items.items() if item.ended is not None] == [ended.id]
        late = select_removable(list(items.values()), time.time() + 2 * 3600)
        assert [item.name for item in late] == [ended.id]
        assert (await runs.exec("true")).ok


async def test_networks_and_volumes_go_with_the_containers_that_use_them(bench: Bench):
    engine, names = bench.engine, [f"{bench.run}-a", f"{bench.run}-b"]
    for name, owner in zip(names, (DEAD, this_process()), strict=True):
        network = await engine.create_network(name, bench.labels(owner), internal=True)
        await engine.create_volume(name, bench.labels(owner))
        host: dict[str, object] = {"NetworkMode": network, "Binds": [f"{name}:/v"]}
        await engine.start(await bench.container(owner, host=host))
    kinds = sorted(item.kind for item in await bench.mine())
    assert kinds == ["network", "network", "sandbox", "sandbox", "volume", "volume"]
    reaped = await bench.reap()
    assert reaped.failed == ()
    left = await bench.mine()
    assert sorted(item.kind for item in left) == ["network", "sandbox", "volume"]
    assert {item.labels.owner for item in left} == {this_process()}
    (user,) = [item.id for item in left if item.kind == "sandbox"]
    assert all(item.used_by == (user,) for item in left if item.kind != "sandbox")


async def test_an_expired_label_alone_takes_nothing_from_an_owner_that_lives_here(bench: Bench):
    engine, me = bench.engine, this_process()
    elsewhere = Owner("elsewhere~00000000", 7, "b:1")
    for owner, name in ((me, f"{bench.run}-mine"), (elsewhere, f"{bench.run}-far")):
        await engine.create_volume(name, bench.labels(owner, seconds=600))
    mine = await bench.container(me, seconds=600)
    await engine.start(mine)
    await bench.container(elsewhere, seconds=600)
    reaped = await bench.reap()
    assert reaped.failed == ()
    assert await bench.left() == {mine, f"{bench.run}-mine"}


async def test_a_containers_own_volumes_go_with_it(bench: Bench):
    anonymous = {"Mounts": [{"Type": "volume", "Target": "/data"}]}
    made = await bench.container(DEAD, host=dict(anonymous))
    found = await bench.engine.inspect(made)
    assert found is not None
    assert found.mounts
    await bench.reap()
    assert await bench.engine.volume(found.mounts[0].name) is None


async def test_shared_resources_outlive_their_owner_until_they_expire(bench: Bench):
    engine = bench.engine
    kept, expired, used = (f"{bench.run}-{n}" for n in ("kept", "expired", "used"))
    await engine.create_volume(kept, bench.labels(DEAD, shared=True))
    for name in (expired, used):
        await engine.create_volume(name, bench.labels(DEAD, shared=True, seconds=600))
    user = await bench.container(this_process(), host={"Binds": [f"{used}:/v"]})
    image, old = await bench.image(DEAD), await bench.image(DEAD, seconds=600)
    await bench.reap()
    assert {item.name or item.id for item in await bench.mine() if item.kind != "sandbox"} == {
        kept,
        used,
        image,
    }
    assert await engine.image(old) is None
    await engine.remove(user)
    await bench.reap()
    assert await engine.volume(used) is None


async def test_a_container_of_a_shared_image_is_not_shared(bench: Bench):
    image = await bench.image(this_process())
    dead = await bench.container(DEAD, image=image)
    assert dead in await bench.left()
    await bench.reap()
    assert dead not in await bench.left()


async def test_a_container_that_somebody_starts_from_our_image_is_theirs(bench: Bench):
    image = await bench.image(DEAD, seconds=600)
    theirs = await bench.container(None, image=image)
    items = await bench.mine()
    assert theirs not in {item.id for item in items}
    (item,) = items
    (user,) = item.used_by
    assert user.startswith("container ")
    assert (await bench.reap()).removed == ()
    choice = choose_all(Stock((Shelf(bench.inventory, tuple(items)),), {}, time.time()))
    assert list(choice.items) == []
    (left,) = choice.left
    assert left.why == f"used by {user}"


async def test_a_name_that_somebody_gave_an_image_keeps_it(bench: Bench):
    image = await bench.image(DEAD, seconds=600)
    other = f"keepsake-{bench.run}:1"
    await bench.engine.tag(image, other)
    bench.images.append(other)
    await bench.reap()
    (item,) = await bench.mine()
    assert item.used_by == (f"the name {other}",)
    await bench.engine.remove_image(other)
    await bench.reap()
    assert await bench.mine() == []


async def test_an_image_of_several_of_our_names_goes_with_all_of_them(bench: Bench):
    image = await bench.image(DEAD, seconds=600)
    await bench.engine.tag(image, f"plimsoll/{bench.run}:second")
    await bench.reap()
    assert await bench.mine() == []


async def test_a_run_is_removed_whole_but_for_what_it_shares(bench: Bench):
    await bench.engine.create_volume(f"{bench.run}-v", bench.labels(this_process()))
    await bench.container(this_process())
    image = await bench.image(this_process())
    other = Bench(bench.engine)
    theirs = await other.container(this_process())
    stock = Stock((Shelf(bench.inventory, tuple(await bench.inventory.items())),), {}, time.time())
    ends: list[str] = []
    choice = choose_run(stock, bench.run)
    await choice.carry_out(lambda _, item, why: ends.append(f"{item.kind}{why}"))
    assert ends == ["sandbox", "volume"]
    assert choice.shared == 1
    assert [item.name for item in await bench.mine()] == [image]
    assert await other.left() == {theirs}
    await bench.engine.remove(theirs)


async def test_what_is_gone_already_is_no_error(bench: Bench):
    await bench.container(DEAD)
    await bench.engine.create_volume(f"{bench.run}-v", bench.labels(DEAD))
    await bench.engine.create_network(f"{bench.run}-n", bench.labels(DEAD))
    await bench.image(DEAD)
    items = await bench.mine()
    assert len(items) == 4
    for _ in range(2):
        for item in items:
            await bench.inventory.remove(item)


async def test_two_who_reap_at_once_both_end_well(bench: Bench):
    for _ in range(6):
        await bench.engine.start(await bench.container(DEAD))
    both = await asyncio.gather(bench.reap(), bench.reap())
    assert [reaped.failed for reaped in both] == [(), ()]
    assert await bench.left() == set()


async def test_sixteen_running_containers_are_reaped_in_a_few_seconds(bench: Bench):
    made = [await bench.container(DEAD) for _ in range(16)]
    await asyncio.gather(*(bench.engine.start(one) for one in made))
    began = time.monotonic()
    await bench.reap()
    assert time.monotonic() - began < 60  # one after another, each has 10 s to end
    assert await bench.left() == set()


OWNER = """
import asyncio, os, sys, time
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.docker.daemon.api import Engine
from plimsoll.sandboxes.docker.labels import to_engine
from plimsoll.sandboxes.host.owners import this_process

async def main():
    labels = to_engine(Labels(sys.argv[2], "task.1", this_process(), time.time() + 600))
    async with Engine(find_endpoint(sys.argv[1], None, os.environ)) as engine:
        config = {"Image": "debian:12", "Cmd": ["sleep", "600"], "Labels": labels}
        made = await engine.create_container(config, sys.argv[2] + "-live")
        await engine.start(made)
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


async def test_another_process_keeps_its_containers_while_it_lives(
    bench: Bench, docker_engine: str
):
    with _start([docker_engine, bench.run]) as process:
        assert process.stdout is not None
        made = (await asyncio.to_thread(process.stdout.readline)).strip()
        await reap(bench.inventory)
        (item,) = await bench.mine()
        assert (item.id, item.state) == (made, "running")
        process.kill()
    await reap(bench.inventory)
    assert await bench.mine() == []


async def test_an_engine_that_is_not_there_is_one_clear_error():
    url = "tcp://127.0.0.1:1"
    with pytest.raises(SandboxUnavailable, match="cannot be reached"):
        async with DockerInventory(Daemon(find_endpoint(url, None, {}))) as inventory:
            await inventory.items()
