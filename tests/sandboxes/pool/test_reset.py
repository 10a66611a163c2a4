"""Reuse of sandboxes: only after a reset that proves them clean."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from parts import spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.permissions import NO_NETWORK, PUBLIC
from plimsoll.sandboxes.pool import pool as pool_module
from plimsoll.sandboxes.pool import reset
from plimsoll.sandboxes.pool.lease import Lease
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stock import PooledSandbox
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, Sandbox, SandboxStatus
from plimsoll.testing.faults import FaultyBackend, ResettableSandbox
from plimsoll.testing.waiting import until

DEBIAN = ImageSource(reference="debian:12")
RESET = PoolOptions(concurrency=1, reuse=Reuse.RESET)


@pytest.fixture
def faulty(backend: Backend) -> FaultyBackend:
    return FaultyBackend(backend, resettable=True)


@pytest.fixture(autouse=True)
def _wait_for_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the resets, even on a busy machine."""
    monkeypatch.setattr(pool_module, "_RESET_WAIT_SECONDS", 60.0)


@pytest.fixture
async def pool(faulty: FaultyBackend) -> AsyncIterator[Pool]:
    async with Pool(faulty, RESET) as made:
        yield made
    assert not faulty.alive


@pytest.fixture
async def image(pool: Pool) -> Image:
    return await pool.build(DEBIAN)


async def use(pool: Pool, image: Image) -> str:
    """Lease a sandbox, write a file, and return the sandbox's id."""
    sandbox = await pool.create(image, spec())
    assert not (await sandbox.exec("cat /work/used", cwd="/")).ok
    await sandbox.exec("mkdir -p /work && echo yes > /work/used; sleep 600 &", cwd="/")
    await sandbox.close()
    return sandbox.id


async def test_a_sandbox_proven_clean_serves_the_next_trial(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, spec(), 4)
    assert len({await use(pool, image) for _ in range(4)}) <= 2
    assert pool.stats.resets >= 2
    assert pool.stats.retired == {}
    assert faulty.baselines == len(faulty.started)


async def test_a_trial_costs_no_start_with_reuse(faulty: FaultyBackend):
    async with Pool(faulty, replace(RESET, concurrency=3)) as pool:
        image = await pool.build(DEBIAN)

        async def trials() -> None:
            for _ in range(8):
                pool.expect(DEBIAN, spec())
                await use(pool, image)
                await asyncio.sleep(0.01)

        pool.expect(DEBIAN, spec(), 3)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(trials())
        assert len(faulty.started) <= 6
        assert pool.stats.hits > pool.stats.cold_starts


async def test_a_sandbox_in_doubt_is_never_reused(faulty: FaultyBackend, pool: Pool, image: Image):
    faulty.doubts = ["/etc/passwd has changed" for _ in range(6)]
    pool.expect(DEBIAN, spec(), 5)
    assert len({await use(pool, image) for _ in range(5)}) == 5
    await until(lambda: not faulty.alive)
    assert pool.stats.resets == 0
    assert pool.stats.retired == {"/etc/passwd has changed": 4}


async def test_a_sandbox_is_retired_after_the_maximum_uses(faulty: FaultyBackend):
    async with Pool(faulty, replace(RESET, ahead=0, uses=2)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 6)
        used = [await use(pool, image) for _ in range(6)]
        assert [used.count(one) for one in dict.fromkeys(used)] == [2, 2, 2]
        assert pool.stats.retired["it was used 2 times"] >= 2


async def test_a_sandbox_whose_reset_times_out_is_retired(
    faulty: FaultyBackend, pool: Pool, image: Image, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reset, "_RESET_SECONDS", 0.1)
    faulty.reset_delay = 30
    pool.expect(DEBIAN, spec(), 3)
    first = await use(pool, image)
    await until(lambda: pool.stats.retired)
    assert pool.stats.retired == {"its reset took longer than 0.1 s": 1}
    assert await use(pool, image) != first


async def test_a_slow_reset_is_not_waited_for(
    faulty: FaultyBackend, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool_module, "_RESET_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(reset, "_RESET_SECONDS", 600.0)
    async with Pool(faulty, replace(RESET, ahead=0)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 2)
        first = await use(pool, image)
        faulty.reset_delay = 600
        async with asyncio.timeout(60):
            second = await pool.create(image, spec())
        await second.close()
        third = await pool.create(image, spec())
        assert third.id not in (first, second.id)


async def test_a_dead_sandbox_is_retired(faulty: FaultyBackend, pool: Pool, image: Image):
    pool.expect(DEBIAN, spec(), 3)
    lease = await pool.create(image, spec())
    assert isinstance(lease, Lease)
    await lease.pooled.sandbox._sandbox.close()  # type: ignore[attr-defined]
    await lease.close()
    await until(lambda: pool.stats.retired)
    assert lease.id not in faulty.alive
    assert pool.stats.resets == 0


async def test_a_sandbox_returned_during_a_call_is_retired(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, spec(), 3)
    lease = await pool.create(image, spec())
    running = asyncio.create_task(lease.exec("sleep 60"))
    await asyncio.sleep(0.1)
    await lease.close()
    await until(lambda: pool.stats.retired)
    assert pool.stats.retired == {"it was returned during a call": 1}
    (ended,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(ended, Exception)


async def test_the_network_is_restored_before_the_next_use(faulty: FaultyBackend):
    async with Pool(faulty, replace(RESET, ahead=0)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(network=NO_NETWORK), 2)
        lease = await pool.create(image, spec(network=NO_NETWORK))
        await lease.set_network(PUBLIC)
        await lease.close()
        again = await pool.create(image, spec(network=NO_NETWORK))
        assert again.id == lease.id
        devices = (await again.exec("cat /proc/net/dev")).stdout.text.splitlines()[2:]
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]


async def test_the_network_is_restored_after_a_failed_change(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    lease = await pool.create(image, spec())
    assert isinstance(lease, Lease)

    async def failing(policy: object) -> None:
        raise RuntimeError("half done")

    sandbox = lease.pooled.sandbox
    sandbox.set_network = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await lease.set_network(NO_NETWORK)
    pool.expect(DEBIAN, spec(), 2)
    await lease.close()
    await until(lambda: pool.stats.retired)
    assert pool.stats.retired == {"its reset failed: RuntimeError": 1}


async def test_oom_kills_of_earlier_uses_are_not_counted(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, spec(), 3)
    kills = 0

    async def status(sandbox: Sandbox) -> SandboxStatus:
        return SandboxStatus(alive=True, processes=0, oom_kills=kills)

    def watch(pooled: PooledSandbox) -> None:
        pooled.sandbox.status = lambda: status(pooled.sandbox)  # type: ignore[method-assign]

    lease = await pool.create(image, spec())
    assert isinstance(lease, Lease)
    first = lease.id
    watch(lease.pooled)
    kills = 2
    assert (await lease.status()).oom_kills == 2
    await lease.close()
    await until(lambda: pool.stats.resets)
    for _ in range(2):
        lease = await pool.create(image, spec())
        if lease.id == first:
            break
    assert lease.id == first
    assert (await lease.status()).oom_kills == 0
    kills = 3
    assert (await lease.status()).oom_kills == 1


async def test_a_sandbox_with_remaining_processes_is_retired(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    pool.expect(DEBIAN, spec(), 2)
    lease = await pool.create(image, spec())
    assert isinstance(lease, Lease)

    async def status() -> SandboxStatus:
        return SandboxStatus(alive=True, processes=1)

    lease.pooled.sandbox.status = status  # type: ignore[method-assign]
    await lease.close()
    await until(lambda: pool.stats.retired)
    assert pool.stats.retired == {"processes are left in it": 1}


async def test_a_sandbox_without_demand_is_closed_and_not_reset(
    faulty: FaultyBackend, pool: Pool, image: Image
):
    lease = await pool.create(image, spec())
    await lease.close()
    await until(lambda: not faulty.alive)
    assert faulty.resets == 0


async def test_a_sandbox_stays_warm_while_an_expected_image_is_unknown(
    faulty: FaultyBackend, pool: Pool, image: Image, tmp_path
):
    """A task that is not built yet may have the same image."""
    (tmp_path / "Dockerfile").write_text("FROM host-system\n")
    expected = pool.expect(ImageSource(tmp_path, tmp_path / "Dockerfile"), spec())
    first = await pool.create(image, spec())
    await first.close()
    await until(lambda: pool.stats.resets == 1)
    assert faulty.alive == {first.id}
    expected.withdraw()
    await until(lambda: not faulty.alive)


async def test_sandboxes_without_reset_are_used_once_with_one_warning(backend: Backend):
    faulty = FaultyBackend(backend, resettable=False)
    async with Pool(faulty, RESET) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 3)
        assert len({await use(pool, image) for _ in range(3)}) == 3
        warnings = [warning for warning in pool.warnings if "not reset" in warning]
    assert warnings == [
        f"a sandbox is used once, not reset: its backend has no reset ({pool.name})"
    ]
    assert not faulty.alive


async def test_sandboxes_with_services_are_used_once(
    faulty: FaultyBackend, pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    build = faulty.build
    monkeypatch.setattr(faulty, "build", lambda *_, **__: build(DEBIAN))
    source = ImageSource(compose=tmp_path / "docker-compose.yaml")
    image = await pool.build(source)
    pool.expect(source, spec(), 3)
    assert len({await use(pool, image) for _ in range(3)}) == 3
    assert faulty.resets == 0


async def test_a_sandbox_whose_baseline_fails_is_used_once_if_it_is_alive(
    faulty: FaultyBackend, pool: Pool, image: Image, monkeypatch: pytest.MonkeyPatch
):
    async def baseline(_: object) -> int:
        raise SandboxUnavailable("the manifest cannot be kept")

    monkeypatch.setattr(ResettableSandbox, "baseline", baseline)
    pool.expect(DEBIAN, spec(), 2)
    assert len({await use(pool, image) for _ in range(2)}) == 2
    assert faulty.resets == 0
    assert any("used once, not reset: the manifest" in warning for warning in pool.warnings)


async def test_a_start_is_repeated_if_the_sandbox_dies_before_its_baseline(
    faulty: FaultyBackend, pool: Pool, image: Image, monkeypatch: pytest.MonkeyPatch
):
    take, dying = ResettableSandbox.baseline, [True]

    async def baseline(sandbox: ResettableSandbox) -> int:
        if dying:
            dying.clear()
            await sandbox._sandbox.close()
            raise SandboxUnavailable("it died")
        return await take(sandbox)

    monkeypatch.setattr(ResettableSandbox, "baseline", baseline)
    lease = await pool.create(image, spec())
    assert (await lease.exec(["true"])).ok
    assert len(faulty.started) == 2


async def test_a_sandbox_whose_baseline_is_taken_counts_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
):
    go_on = asyncio.Event()

    async def baseline(_: object) -> int:
        await go_on.wait()
        return 1

    monkeypatch.setattr(ResettableSandbox, "baseline", baseline)
    monkeypatch.setattr(reset, "_RESET_SECONDS", 600.0)
    faulty = FaultyBackend(backend, resettable=True)
    async with Pool(faulty, PoolOptions(concurrency=1, reuse=Reuse.RESET, ahead=2)) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 4)
        await until(lambda: len(faulty.alive) == 2)
        leasing = asyncio.create_task(pool.create(image, spec()))
        await until(lambda: len(faulty.alive) == 3)
        go_on.set()
        await leasing
        assert faulty.max_alive == 3


async def test_leaving_the_pool_during_a_reset_leaves_nothing(faulty: FaultyBackend):
    async with Pool(faulty, RESET) as pool:
        image = await pool.build(DEBIAN)
        pool.expect(DEBIAN, spec(), 3)
        faulty.reset_delay = 60
        await use(pool, image)
        await until(lambda: faulty.resets)
    assert not faulty.alive


@pytest.mark.every_backend
async def test_a_real_reset_removes_the_files_of_the_last_use(backend: Backend):
    """A backend without reset serves only unused sandboxes."""
    async with Pool(FaultyBackend(backend), RESET) as made:
        image = await made.build(DEBIAN)
        made.expect(DEBIAN, spec(), 4)
        for _ in range(4):
            await use(made, image)
        stats = made.stats
    assert stats.hits + stats.cold_starts == 4
    assert (stats.resets > 0) == (backend.name != "local")


@pytest.mark.every_backend
@pytest.mark.parametrize("reuse", list(Reuse))
async def test_concurrent_trials_leave_nothing_under_every_reuse(backend: Backend, reuse: Reuse):
    faulty = FaultyBackend(backend)
    async with Pool(faulty, PoolOptions(concurrency=4, reuse=reuse)) as made:
        image = await made.build(DEBIAN)
        made.expect(DEBIAN, spec(), 12)
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(_trials(made, image))
    assert not faulty.alive


async def _trials(pool: Pool, image: Image) -> None:
    for _ in range(3):
        await use(pool, image)
