"""Pools around real sandboxes: who is handed what, what is started, and that nothing is left."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from parts import spec
from plimsoll.core.errors import SandboxUnavailable, SandboxUnsupported
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import PUBLIC
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stock import KeyStock, PooledSandbox
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, Limits, SandboxSpec
from plimsoll.testing.faults import FaultyBackend
from plimsoll.testing.waiting import until

DEBIAN = ImageSource(reference="debian:12")


def ticket(name: str, **more: object) -> SandboxSpec:
    return replace(spec(**more), labels=Labels("run", name, this_process(), time.time() + 600))


@pytest.fixture
def world(backend: Backend) -> FaultyBackend:
    return FaultyBackend(backend)


@pytest.fixture
async def pool(world: FaultyBackend) -> AsyncIterator[Pool]:
    async with Pool(world, PoolOptions(concurrency=2)) as made:
        yield made
    assert not world.alive


@pytest.fixture
async def image(pool: Pool) -> Image:
    return await pool.build(DEBIAN)


async def test_what_is_expected_is_started_ahead_and_found_ready(
    world: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, spec(), 2)
    await until(lambda: len(world.alive) == 2)
    for _ in range(2):
        sandbox = await pool.create(image, spec())
        assert (await sandbox.exec("echo here")).stdout.text == "here\n"
    assert len(world.started) == 2
    assert (pool.stats.hits, pool.stats.cold_starts) == (2, 0)


async def test_what_is_not_expected_is_started_when_it_is_asked_for(
    world: FaultyBackend, pool: Pool, image: Image
):
    sandbox = await pool.create(image, spec())
    assert (await sandbox.exec(["true"])).ok
    assert len(world.started) == 1
    assert (pool.stats.hits, pool.stats.cold_starts) == (0, 1)


async def test_an_expectation_waits_for_its_image_to_be_built(world: FaultyBackend, pool: Pool):
    pool.expect(DEBIAN, spec())
    await asyncio.sleep(0.05)
    assert world.started == []
    await pool.build(DEBIAN)
    await until(lambda: len(world.alive) == 1)


async def test_a_used_sandbox_is_never_handed_out_again_under_fresh(
    world: FaultyBackend, pool: Pool, image: Image
):
    seen: set[str] = set()
    pool.expect(DEBIAN, spec(), 6)
    for _ in range(6):
        sandbox = await pool.create(image, spec())
        assert sandbox.id not in seen
        assert not (await sandbox.exec("cat /used")).ok
        await sandbox.exec("echo yes > /used", cwd="/")
        seen.add(sandbox.id)
        await sandbox.close()
    assert len(seen) == 6


@pytest.mark.parametrize(
    "other",
    [
        spec(env={"A": "2"}),
        spec(env={"A": "1"}, network=PUBLIC),
        spec(env={"A": "1"}, limits=Limits(memory_mb=512)),
        spec(env={"A": "1"}, workdir="/tmp"),
    ],
    ids=["env", "network", "limits", "workdir"],
)
async def test_a_sandbox_serves_its_own_spec_only(
    world: FaultyBackend, pool: Pool, image: Image, other: SandboxSpec
):
    pool.expect(DEBIAN, spec(env={"A": "1"}))
    await until(lambda: len(world.alive) == 1)
    sandbox = await pool.create(image, other)
    assert pool.stats.hits == 0
    said = await sandbox.exec('echo "$A $PWD"')
    assert said.stdout.text == f"{other.env['A']} {other.workdir or sandbox.workdir}\n"
    same = await pool.create(image, spec(env={"A": "1"}))
    assert pool.stats.hits == 1
    assert same.id != sandbox.id


async def test_no_trial_is_given_a_sandbox_that_expires_before_it_must_be_done(
    world: FaultyBackend, pool: Pool, image: Image
):
    def lasting(seconds: float) -> SandboxSpec:
        return replace(spec(), labels=Labels("run", "a.1", this_process(), time.time() + seconds))

    day = 86_400.0
    pool.expect(DEBIAN, lasting(day))
    await until(lambda: len(world.alive) == 1)
    await pool.create(image, lasting(5 * day))
    assert pool.stats.retired == {"it is too old": 1}
    first, last = world.started
    assert first.labels.expires > time.time() + 1.9 * day
    assert last.labels.expires > time.time() + 5.9 * day


async def test_a_lease_carries_the_trials_labels_and_the_sandbox_the_pools(
    world: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, ticket("a.1"))
    lease = await pool.create(image, ticket("b.1"))
    assert (lease.labels.run, lease.labels.ticket) == ("run", "b.1")
    assert {(one.labels.run, one.labels.ticket) for one in world.started} == {("run", "pool")}
    assert all(one.labels.expires > time.time() + 24 * 3600 for one in world.started)


async def test_to_close_a_lease_does_not_wait_for_the_removal(
    world: FaultyBackend, pool: Pool, image: Image
):
    lease = await pool.create(image, spec())
    world.close_delay = 1.0
    await lease.close()
    await lease.close()
    assert world.alive
    await until(lambda: not world.alive)


async def test_nothing_reaches_the_sandbox_through_a_closed_lease(
    world: FaultyBackend, pool: Pool, image: Image, tmp_path: Path
):
    lease = await pool.create(image, spec())
    world.close_delay = 0.5
    await lease.close()
    for call in (
        lambda: lease.exec(["true"]),
        lambda: lease.upload(tmp_path, "/tmp/x"),
        lambda: lease.download("/etc/passwd", tmp_path / "x"),
        lambda: lease.empty("/tmp/x"),
        lambda: lease.set_network(PUBLIC),
        lambda: lease.kill_all(),
    ):
        with pytest.raises(SandboxUnavailable, match="was closed"):
            await call()
    assert not (await lease.status()).alive


async def test_a_warm_sandbox_that_died_is_replaced(world: FaultyBackend, pool: Pool, image: Image):
    made: list[object] = []
    create = world.create

    async def remembering(image: Image, spec: SandboxSpec) -> object:
        made.append(await create(image, spec))
        return made[-1]

    world.create = remembering  # type: ignore[method-assign]
    pool.expect(DEBIAN, spec())
    await until(lambda: made)
    await asyncio.sleep(0)
    await made[0]._sandbox.close()  # type: ignore[attr-defined]
    lease = await pool.create(image, spec())
    assert (await lease.exec(["true"])).ok
    assert pool.stats.cold_starts == 1
    (reason,) = pool.stats.retired
    assert reason.startswith("it died while it waited")


async def test_never_more_are_alive_than_trials_and_those_ahead_of_them(
    world: FaultyBackend, pool: Pool, image: Image
):
    world.start_delay, world.close_delay = 0.02, 0.05
    pool.expect(DEBIAN, spec(), 12)

    async def trials() -> None:
        for _ in range(6):
            lease = await pool.create(image, spec())
            await lease.exec(["true"])
            await lease.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(trials())
    assert world.max_alive <= 4
    assert pool.stats.hits + pool.stats.cold_starts == 12


async def test_leases_beyond_the_bound_do_not_wait_for_each_other(
    world: FaultyBackend, pool: Pool, image: Image
):
    async with asyncio.timeout(60):
        leases = [await pool.create(image, spec()) for _ in range(7)]
    assert len({lease.id for lease in leases}) == 7


async def test_ahead_bounds_what_waits(world: FaultyBackend, backend: Backend):
    async with Pool(world, PoolOptions(concurrency=4, ahead=1)) as pool:
        await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 4)
        await until(lambda: len(world.alive) == 1)
        await asyncio.sleep(0.05)
        assert len(world.started) == 1


async def test_what_nobody_expects_any_more_is_closed(
    world: FaultyBackend, pool: Pool, image: Image
):
    expected = pool.expect(DEBIAN, spec(), 2)
    await until(lambda: len(world.alive) == 2)
    expected.withdraw()
    expected.withdraw()
    await until(lambda: not world.alive)
    assert pool.stats.retired == {}


async def test_a_lease_takes_its_own_expectation_and_leaves_those_of_others(
    world: FaultyBackend, pool: Pool, image: Image
):
    first, second = (pool.expect(DEBIAN, ticket(name)) for name in ("a.1", "b.1"))
    await pool.create(image, ticket("b.1"))
    assert (first.remaining, second.remaining) == (1, 0)
    second.withdraw()
    await until(lambda: len(world.alive) == 2)
    await pool.create(image, ticket("a.1"))
    assert pool.stats.hits >= 1


async def test_a_lease_that_was_cancelled_leaves_nothing_behind(
    world: FaultyBackend, pool: Pool, image: Image
):
    world.start_delay = 0.1
    leasing = [asyncio.create_task(pool.create(image, spec())) for _ in range(3)]
    await until(lambda: len(world.started) == 3)
    leasing[0].cancel()
    kept = [await task for task in leasing[1:]]
    with pytest.raises(asyncio.CancelledError):
        await leasing[0]
    await until(lambda: len(world.alive) == 2)
    assert world.alive == {lease.id for lease in kept}


async def test_a_lease_cancelled_as_it_is_served_does_not_keep_its_sandbox(
    world: FaultyBackend, pool: Pool, image: Image, monkeypatch: pytest.MonkeyPatch
):
    hand_out = KeyStock.hand_out

    def and_cancel(shelf: KeyStock, pooled: PooledSandbox) -> None:
        hand_out(shelf, pooled)
        leasing.cancel()

    monkeypatch.setattr(KeyStock, "hand_out", and_cancel)
    leasing = asyncio.create_task(pool.create(image, spec()))
    with pytest.raises(asyncio.CancelledError):
        await leasing
    assert len(world.started) == 1
    await until(lambda: not world.alive)


async def test_leaving_the_pool_closes_leased_warm_and_half_started_ones(world: FaultyBackend):
    async with Pool(world, PoolOptions(concurrency=4)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec())
        await until(lambda: len(world.alive) == 1)
        lease = await pool.create(image, spec(env={"A": "1"}))
        running = asyncio.create_task(lease.exec("sleep 60"))
        world.start_delay = 60
        waiting = asyncio.create_task(pool.create(image, spec(env={"A": "2"})))
        await until(lambda: len(world.started) == 3)
    assert not world.alive
    for task in (running, waiting):
        with pytest.raises(SandboxUnavailable):
            await task
    with pytest.raises(SandboxUnavailable, match="the pool was closed"):
        await pool.create(image, spec())


async def test_starts_that_keep_failing_are_told_to_all_who_wait_and_to_the_next(
    world: FaultyBackend, pool: Pool, image: Image
):
    world.start_errors = [SandboxUnavailable("no space left on the engine") for _ in range(50)]
    async with asyncio.timeout(60):
        ends = await asyncio.gather(
            *(pool.create(image, spec()) for _ in range(4)), return_exceptions=True
        )
    for end in ends:
        assert isinstance(end, SandboxUnavailable)
        assert "3 times in a row: no space left on the engine" in str(end)
        assert image.key in str(end)
    tried = len(world.started)
    with pytest.raises(SandboxUnavailable, match="no space left"):
        await pool.create(image, spec())
    assert len(world.started) == tried
    assert any("no space left" in warning for warning in pool.warnings)
    assert pool.stats.failed_starts == tried


async def test_after_a_while_it_is_tried_again(world: FaultyBackend, pool: Pool, image: Image):
    world.start_errors = [SandboxUnavailable("not now") for _ in range(3)]
    pool.expect(DEBIAN, spec())
    await until(lambda: len(world.started) == 3)
    await until(lambda: len(world.alive) == 1)
    lease = await pool.create(image, spec())
    assert (await lease.exec(["true"])).ok
    assert pool.stats.hits == 1


async def test_a_start_that_fails_once_is_made_good(world: FaultyBackend, pool: Pool, image: Image):
    world.start_errors = [SandboxUnavailable("a hiccup")]
    lease = await pool.create(image, spec())
    assert (await lease.exec(["true"])).ok
    assert pool.stats.failed_starts == 1


async def test_what_a_backend_refuses_is_refused_in_its_own_words(
    world: FaultyBackend, pool: Pool, image: Image
):
    asked = spec(limits=Limits(gpus=1))
    pool.expect(DEBIAN, asked)
    await until(lambda: world.started)
    for _ in range(4):
        with pytest.raises(SandboxUnsupported, match="GPU"):
            await pool.create(image, asked)


async def test_a_fault_of_ours_reaches_whoever_waits_for_the_sandbox(
    world: FaultyBackend, pool: Pool, image: Image
):
    world.start_errors = [KeyError("nobody thought of this")]
    with pytest.raises(KeyError):
        await pool.create(image, spec())
    assert (await (await pool.create(image, spec())).exec(["true"])).ok


async def test_a_sandbox_that_cannot_be_removed_is_said_and_the_trials_go_on(
    world: FaultyBackend, pool: Pool, image: Image
):
    world.close_error = SandboxUnavailable("the engine lost it")
    lease = await pool.create(image, spec())
    await lease.close()
    await until(lambda: not world.alive)
    await asyncio.sleep(0)
    assert f"sandbox {lease.id} could not be removed: the engine lost it" in pool.warnings
    assert (await (await pool.create(image, spec())).exec(["true"])).ok


async def test_none_passes_through_and_is_still_measured(world: FaultyBackend):
    async with Pool(world, PoolOptions(concurrency=2, reuse=Reuse.NONE)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 5)
        sandbox = await pool.create(image, ticket("a.1"))
        assert sandbox.labels.ticket == "a.1"
        assert [one.labels.ticket for one in world.started] == ["a.1"]
        await sandbox.close()
        assert not world.alive
        stats = pool.stats
    assert (stats.hits, stats.cold_starts) == (0, 1)
    assert stats.start is not None
    assert stats.start.count == 1
    assert (stats.wait_warm, stats.reset, stats.retired) == (None, None, {})


async def test_new_warnings_come_behind_those_that_were_there(world: FaultyBackend, pool: Pool):
    before = list(pool.warnings)
    pool.warn("from the pool")
    assert list(pool.warnings) == [*before, "from the pool"]
    world._backend.warn("from the backend")  # type: ignore[attr-defined]
    assert list(pool.warnings) == [*before, "from the pool", "from the backend"]


async def test_a_warning_that_comes_again_takes_no_other_ones_place(pool: Pool):
    for _ in range(100):
        pool.warn("a sandbox is used once")
    pool.warn("a sandbox could not be removed")
    assert list(pool.warnings)[-2:] == ["a sandbox is used once", "a sandbox could not be removed"]


async def test_what_was_expected_of_any_is_taken_by_the_ticket_that_claimed_it(
    world: FaultyBackend, pool: Pool, image: Image
):
    first, second = (pool.expect(DEBIAN, ticket("a.0")) for _ in range(2))
    second.claim(ticket("a.2").labels)
    await pool.create(image, ticket("a.2"))
    assert (first.remaining, second.remaining) == (1, 0)
