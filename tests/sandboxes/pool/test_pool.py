"""Pools around real sandboxes: leases, starts, and that nothing is left."""

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
def faulty(backend: Backend) -> FaultyBackend:
    return FaultyBackend(backend)


@pytest.fixture
async def pool(faulty: FaultyBackend) -> AsyncIterator[Pool]:
    async with Pool(faulty, PoolOptions(concurrency=2)) as created:
        yield created
    assert not faulty.alive


@pytest.fixture
async def image(pool: Pool) -> Image:
    return await pool.build(DEBIAN)


async def test_an_expected_sandbox_is_prewarmed_and_found_warm(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, spec(), 2)
    await until(lambda: len(faulty.alive) == 2)
    for _ in range(2):
        sandbox = await pool.create(image, spec())
        assert (await sandbox.exec("echo here")).stdout.text == "here\n"
    assert len(faulty.started) == 2
    assert (pool.stats.hits, pool.stats.cold_starts) == (2, 0)


async def test_an_unexpected_sandbox_is_started_on_request(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    sandbox = await pool.create(image, spec())
    assert (await sandbox.exec(["true"])).ok
    assert len(faulty.started) == 1
    assert (pool.stats.hits, pool.stats.cold_starts) == (0, 1)


async def test_prewarming_waits_until_the_image_is_built(faulty: FaultyBackend, pool: Pool):
    pool.expect(DEBIAN, spec())
    await asyncio.sleep(0.05)
    assert faulty.started == []
    await pool.build(DEBIAN)
    await until(lambda: len(faulty.alive) == 1)


async def test_a_used_sandbox_is_never_leased_again_under_fresh(
    faulty: FaultyBackend, pool: Pool, image: Image
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
async def test_a_sandbox_serves_only_its_own_specification(
    faulty: FaultyBackend, pool: Pool, image: Image, other: SandboxSpec
):
    pool.expect(DEBIAN, spec(env={"A": "1"}))
    await until(lambda: len(faulty.alive) == 1)
    sandbox = await pool.create(image, other)
    assert pool.stats.hits == 0
    done = await sandbox.exec('echo "$A $PWD"')
    assert done.stdout.text == f"{other.env['A']} {other.workdir or sandbox.workdir}\n"
    same = await pool.create(image, spec(env={"A": "1"}))
    assert pool.stats.hits == 1
    assert same.id != sandbox.id


async def test_no_trial_gets_a_sandbox_that_expires_before_its_deadline(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    def lasting(seconds: float) -> SandboxSpec:
        return replace(spec(), labels=Labels("run", "a.1", this_process(), time.time() + seconds))

    day = 86_400.0
    pool.expect(DEBIAN, lasting(day))
    await until(lambda: len(faulty.alive) == 1)
    await pool.create(image, lasting(5 * day))
    assert pool.stats.retired == {"it is too old": 1}
    first, last = faulty.started
    assert first.labels.expires > time.time() + 1.9 * day
    assert last.labels.expires > time.time() + 5.9 * day


async def test_a_lease_carries_the_trials_labels_and_the_sandbox_the_pools(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, ticket("a.1"))
    lease = await pool.create(image, ticket("b.1"))
    assert (lease.labels.run, lease.labels.ticket) == ("run", "b.1")
    assert {(one.labels.run, one.labels.ticket) for one in faulty.started} == {("run", "pool")}
    assert all(one.labels.expires > time.time() + 24 * 3600 for one in faulty.started)


async def test_closing_a_lease_does_not_wait_for_the_removal(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    lease = await pool.create(image, spec())
    faulty.close_delay = 1.0
    await lease.close()
    await lease.close()
    assert faulty.alive
    await until(lambda: not faulty.alive)


async def test_a_closed_lease_does_not_reach_the_sandbox(
    faulty: FaultyBackend, pool: Pool, image: Image, tmp_path: Path
):
    lease = await pool.create(image, spec())
    faulty.close_delay = 0.5
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


async def test_a_warm_sandbox_that_died_is_replaced(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    created: list[object] = []
    create = faulty.create

    async def recording(image: Image, spec: SandboxSpec) -> object:
        created.append(await create(image, spec))
        return created[-1]

    faulty.create = recording  # type: ignore[method-assign]
    pool.expect(DEBIAN, spec())
    await until(lambda: created)
    await asyncio.sleep(0)
    await created[0]._sandbox.close()  # type: ignore[attr-defined]
    lease = await pool.create(image, spec())
    assert (await lease.exec(["true"])).ok
    assert pool.stats.cold_starts == 1
    (reason,) = pool.stats.retired
    assert reason.startswith("it died while idle")


async def test_the_number_of_sandboxes_is_bounded_by_trials_and_prewarmed_ones(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    faulty.start_delay, faulty.close_delay = 0.02, 0.05
    pool.expect(DEBIAN, spec(), 12)

    async def trials() -> None:
        for _ in range(6):
            lease = await pool.create(image, spec())
            await lease.exec(["true"])
            await lease.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(trials())
    assert faulty.max_alive <= 4
    assert pool.stats.hits + pool.stats.cold_starts == 12


async def test_leases_beyond_the_limit_do_not_wait_for_each_other(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    async with asyncio.timeout(60):
        leases = [await pool.create(image, spec()) for _ in range(7)]
    assert len({lease.id for lease in leases}) == 7


async def test_the_option_ahead_limits_prewarmed_sandboxes(faulty: FaultyBackend, backend: Backend):
    async with Pool(faulty, PoolOptions(concurrency=4, ahead=1)) as pool:
        await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 4)
        await until(lambda: len(faulty.alive) == 1)
        await asyncio.sleep(0.05)
        assert len(faulty.started) == 1


async def test_a_warm_sandbox_without_demand_is_closed(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    expected = pool.expect(DEBIAN, spec(), 2)
    await until(lambda: len(faulty.alive) == 2)
    expected.withdraw()
    expected.withdraw()
    await until(lambda: not faulty.alive)
    assert pool.stats.retired == {}


async def test_a_lease_uses_the_expectation_of_its_own_ticket(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    first, second = (pool.expect(DEBIAN, ticket(name)) for name in ("a.1", "b.1"))
    await pool.create(image, ticket("b.1"))
    assert (first.remaining, second.remaining) == (1, 0)
    second.withdraw()
    await until(lambda: len(faulty.alive) == 2)
    await pool.create(image, ticket("a.1"))
    assert pool.stats.hits >= 1


async def test_a_cancelled_lease_leaves_nothing(faulty: FaultyBackend, pool: Pool, image: Image):
    faulty.start_delay = 0.1
    leasing = [asyncio.create_task(pool.create(image, spec())) for _ in range(3)]
    await until(lambda: len(faulty.started) == 3)
    leasing[0].cancel()
    kept = [await task for task in leasing[1:]]
    with pytest.raises(asyncio.CancelledError):
        await leasing[0]
    await until(lambda: len(faulty.alive) == 2)
    assert faulty.alive == {lease.id for lease in kept}


async def test_a_lease_cancelled_while_served_returns_its_sandbox(
    faulty: FaultyBackend, pool: Pool, image: Image, monkeypatch: pytest.MonkeyPatch
):
    offer = KeyStock.offer

    def and_cancel(key_stock: KeyStock, pooled: PooledSandbox) -> None:
        offer(key_stock, pooled)
        leasing.cancel()

    monkeypatch.setattr(KeyStock, "offer", and_cancel)
    leasing = asyncio.create_task(pool.create(image, spec()))
    with pytest.raises(asyncio.CancelledError):
        await leasing
    assert len(faulty.started) == 1
    await until(lambda: not faulty.alive)


async def test_leaving_the_pool_closes_leased_warm_and_half_started_sandboxes(
    faulty: FaultyBackend,
):
    async with Pool(faulty, PoolOptions(concurrency=4)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec())
        await until(lambda: len(faulty.alive) == 1)
        lease = await pool.create(image, spec(env={"A": "1"}))
        running = asyncio.create_task(lease.exec("sleep 60"))
        faulty.start_delay = 60
        waiting = asyncio.create_task(pool.create(image, spec(env={"A": "2"})))
        await until(lambda: len(faulty.started) == 3)
    assert not faulty.alive
    for task in (running, waiting):
        with pytest.raises(SandboxUnavailable):
            await task
    with pytest.raises(SandboxUnavailable, match="the pool was closed"):
        await pool.create(image, spec())


async def test_starts_that_keep_failing_fail_all_waiters_and_the_next_request(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    faulty.start_errors = [SandboxUnavailable("no space left on the daemon") for _ in range(50)]
    async with asyncio.timeout(60):
        ends = await asyncio.gather(
            *(pool.create(image, spec()) for _ in range(4)), return_exceptions=True
        )
    for end in ends:
        assert isinstance(end, SandboxUnavailable)
        assert "3 times in a row: no space left on the daemon" in str(end)
        assert image.key in str(end)
    tried = len(faulty.started)
    with pytest.raises(SandboxUnavailable, match="no space left"):
        await pool.create(image, spec())
    assert len(faulty.started) == tried
    assert any("no space left" in warning for warning in pool.warnings)
    assert pool.stats.failed_starts == tried


async def test_starts_are_retried_after_the_backoff(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    faulty.start_errors = [SandboxUnavailable("not now") for _ in range(3)]
    pool.expect(DEBIAN, spec())
    await until(lambda: len(faulty.started) == 3)
    await until(lambda: len(faulty.alive) == 1)
    lease = await pool.create(image, spec())
    assert (await lease.exec(["true"])).ok
    assert pool.stats.hits == 1


async def test_a_start_that_fails_once_is_retried(faulty: FaultyBackend, pool: Pool, image: Image):
    faulty.start_errors = [SandboxUnavailable("a hiccup")]
    lease = await pool.create(image, spec())
    assert (await lease.exec(["true"])).ok
    assert pool.stats.failed_starts == 1


async def test_a_refusal_of_the_backend_is_passed_on(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    asked = spec(limits=Limits(gpus=1))
    pool.expect(DEBIAN, asked)
    await until(lambda: faulty.started)
    for _ in range(4):
        with pytest.raises(SandboxUnsupported, match="GPU"):
            await pool.create(image, asked)


async def test_an_unexpected_exception_reaches_the_waiter(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    faulty.start_errors = [KeyError("nobody thought of this")]
    with pytest.raises(KeyError):
        await pool.create(image, spec())
    assert (await (await pool.create(image, spec())).exec(["true"])).ok


async def test_a_sandbox_that_cannot_be_removed_is_a_warning(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    faulty.close_error = SandboxUnavailable("the daemon lost it")
    lease = await pool.create(image, spec())
    await lease.close()
    await until(lambda: not faulty.alive)
    await asyncio.sleep(0)
    assert f"sandbox {lease.id} could not be removed: the daemon lost it" in pool.warnings
    assert (await (await pool.create(image, spec())).exec(["true"])).ok


async def test_reuse_none_passes_through_and_is_measured(faulty: FaultyBackend):
    async with Pool(faulty, PoolOptions(concurrency=2, reuse=Reuse.NONE)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 5)
        sandbox = await pool.create(image, ticket("a.1"))
        assert sandbox.labels.ticket == "a.1"
        assert [one.labels.ticket for one in faulty.started] == ["a.1"]
        await sandbox.close()
        assert not faulty.alive
        stats = pool.stats
    assert (stats.hits, stats.cold_starts) == (0, 1)
    assert stats.start is not None
    assert stats.start.count == 1
    assert (stats.wait_warm, stats.reset, stats.retired) == (None, None, {})


async def test_new_warnings_are_appended(faulty: FaultyBackend, pool: Pool):
    before = list(pool.warnings)
    pool.warn("from the pool")
    assert list(pool.warnings) == [*before, "from the pool"]
    faulty._backend.warn("from the backend")  # type: ignore[attr-defined]
    assert list(pool.warnings) == [*before, "from the pool", "from the backend"]


async def test_a_repeated_warning_does_not_use_up_the_limit(pool: Pool):
    for _ in range(100):
        pool.warn("a sandbox is used once")
    pool.warn("a sandbox could not be removed")
    assert list(pool.warnings)[-2:] == ["a sandbox is used once", "a sandbox could not be removed"]


async def test_a_claimed_expectation_is_used_by_its_ticket(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    first, second = (pool.expect(DEBIAN, ticket("a.0")) for _ in range(2))
    second.claim(ticket("a.2").labels)
    await pool.create(image, ticket("a.2"))
    assert (first.remaining, second.remaining) == (1, 0)
