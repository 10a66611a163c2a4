"""The reaper: the resources it selects, the order of removal, and failures."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import pytest

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, Owner
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.reaper import (
    Reaper,
    Resource,
    ResourceKind,
    in_use,
    reap,
    remove_all,
    select_removable,
)
from plimsoll.testing.waiting import until

NOW = 1_000_000.0
ALIVE = this_process()
DEAD = replace(ALIVE, started="before")
ELSEWHERE = Owner("there", 3, "c")


def item(
    name: str,
    owner: Owner = ALIVE,
    *,
    kind: ResourceKind = "sandbox",
    expires: float = NOW + 60,
    shared: bool = False,
    used_by: tuple[str, ...] = (),
) -> Resource:
    labels = Labels("run", "ticket", owner, expires)
    return Resource(kind, name, labels, shared=shared, used_by=used_by)


def names(*items: Resource) -> list[str]:
    return [one.id for one in select_removable(items, NOW)]


def test_resources_of_a_dead_owner_are_removed_and_of_a_live_one_kept():
    assert names(item("a", ALIVE), item("b", DEAD)) == ["b"]


@pytest.mark.parametrize("kind", ["sandbox", "network", "volume"])
def test_expired_resources_are_removed_unless_their_owner_is_alive_here(kind: ResourceKind):
    past = NOW - 1
    owners = {"a": ALIVE, "b": ELSEWHERE, "c": DEAD}
    assert names(*(item(n, o, kind=kind, expires=past) for n, o in owners.items())) == ["b", "c"]


def test_expired_shared_resources_are_removed():
    assert names(item("a", ALIVE, kind="image", shared=True, expires=NOW - 1)) == ["a"]


def test_resources_of_another_host_stay_until_they_expire():
    assert names(item("a", ELSEWHERE)) == []
    assert names(item("a", ELSEWHERE, expires=NOW - 1)) == ["a"]


def test_sandboxes_of_another_host_that_ended_long_ago_are_removed():
    lasting = replace(item("a", ELSEWHERE), labels=Labels("run", "ticket", ELSEWHERE, NOW + 1e6))
    assert names(replace(lasting, ended=NOW - 3500)) == []
    assert names(replace(lasting, ended=NOW - 3700)) == ["a"]


def test_shared_resources_outlive_their_owner_until_they_expire():
    cache = item("a", DEAD, kind="image", shared=True)
    assert names(cache) == []
    assert names(replace(cache, labels=replace(cache.labels, expires=NOW - 1))) == ["a"]


@pytest.mark.parametrize("shared", [True, False])
def test_resources_in_use_are_never_removed(shared: bool):
    used = item("v", DEAD, kind="volume", expires=NOW - 1, shared=shared, used_by=("a",))
    assert names(item("a", ALIVE), used) == []
    assert names(item("a", DEAD), used) == ["a", "v"]
    assert names(item("a", DEAD), replace(used, used_by=("a", "container other"))) == ["a"]


def test_resources_of_this_process_are_kept():
    mine, now = this_process(), time.time()
    assert select_removable([item("a", mine, expires=now + 60)], now) == []
    assert select_removable([item("a", mine, expires=now - 1)], now) == []


def test_users_of_a_resource_are_removed_before_it():
    kinds: list[ResourceKind] = ["image", "volume", "network", "sandbox"]
    items = [item(kind, DEAD, kind=kind) for kind in kinds]
    assert names(*items) == ["sandbox", "network", "volume", "image"]


def test_the_users_of_a_resource_are_named():
    volume = item("v", kind="volume", used_by=("a", "b"))
    assert in_use([volume, item("a")]) == {volume: ("b",)}
    assert in_use([volume, item("a"), item("b")]) == {}


class Slow:
    """An inventory in memory, in which removals take a while and some fail."""

    name = "slow"

    def __init__(self, *items: Resource, failing: Sequence[str] = (), broken: bool = False) -> None:
        self.left = list(items)
        self.removed: list[str] = []
        self.asked = 0
        self.most = 0
        self._now = 0
        self._failing = failing
        self._broken = broken

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def items(self) -> Sequence[Resource]:
        self.asked += 1
        if self._broken:
            raise RuntimeError("the list is torn")
        return tuple(self.left)

    async def remove(self, item: Resource) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.02)
        self._now -= 1
        if item.id in self._failing:
            raise SandboxUnavailable(f"{item.id} is stuck")
        self.left.remove(item)
        self.removed.append(item.id)


def dead(name: str, kind: ResourceKind = "sandbox") -> Resource:
    return item(name, replace(this_process(), started="never"), kind=kind, expires=time.time() + 60)


async def test_removals_run_concurrently_up_to_a_limit():
    slow = Slow(*(dead(f"{n}") for n in range(40)))
    await reap(slow)
    assert slow.left == []
    assert 2 <= slow.most <= 16


async def test_networks_are_removed_when_the_last_sandbox_is_gone():
    slow = Slow(dead("n", "network"), *(dead(f"{n}") for n in range(20)), dead("v", "volume"))
    await reap(slow)
    assert slow.removed[-2:] == ["n", "v"]


async def test_a_failed_removal_is_reported_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
):
    slow = Slow(*(dead(f"{n}") for n in range(5)), failing=["2"])
    reaped = await reap(slow)
    assert sorted(one.id for one in reaped.removed) == ["0", "1", "3", "4"]
    assert [(one.resource.id, one.reason) for one in reaped.failed] == [("2", "2 is stuck")]
    assert "2 is stuck" in caplog.text


async def test_each_removal_is_reported_when_it_ends():
    ended: list[tuple[str, str]] = []
    slow = Slow(dead("a"), dead("b"), failing=["b"])
    await remove_all(slow, slow.left.copy(), lambda one, why: ended.append((one.id, why)))
    assert sorted(ended) == [("a", ""), ("b", "b is stuck")]


async def test_the_reaper_repeats_and_ends_with_its_block():
    slow = Slow()
    async with Reaper(slow, every=0.01):
        await until(lambda: slow.asked >= 2)
        slow.left.append(dead("late"))
        await until(lambda: slow.removed == ["late"])
    asked = slow.asked
    await asyncio.sleep(0.05)
    assert slow.asked == asked


async def test_a_failing_reaper_warns_and_goes_on(caplog: pytest.LogCaptureFixture):
    slow = Slow(broken=True)
    with caplog.at_level(logging.WARNING):
        async with Reaper(slow, every=0.01):
            await until(lambda: slow.asked >= 3)
    assert "the list is torn" in caplog.text


async def test_leftovers_of_other_processes_are_removed_at_its_end():
    slow = Slow()
    async with Reaper(slow):
        slow.left.append(dead("late"))
    assert slow.removed == ["late"]
