"""A full disk during a trial: failures are not graded, and the verdict names the disk."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from helpers import FinishedTrial, PlainAgent, Shell, check_graded, check_void
from mounts import ext4, tmpfs
from parts import need
from plimsoll.agents.oracle import Oracle
from plimsoll.agents.protocol import Agent, Assignment, Outcome
from plimsoll.core.errors import NoRoom
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.sandbox import LocalSandbox
from plimsoll.sandboxes.pool.options import PoolOptions
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.tasks.task import Task
from plimsoll.testing.waiting import until
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Cause

ONE_IF_DONE = """\
if [ -s /app/done ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""  # noqa: E501
FILL = "head -c 200M /dev/zero > /fill || true\n"
FILL_FOR_A_MOMENT = "exec 3> /fill; rm /fill; head -c 200M /dev/zero >&3; sleep 600 & true"
"""The process that holds the file is killed with all other processes of the agent."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    with tmpfs(tmp_path / "small", "64m") as home:
        yield home


@pytest.fixture
async def small_backend(small: Path) -> AsyncIterator[LocalBackend]:
    """A backend on the small file system."""
    async with LocalBackend(LocalOptions(home=small)) as backend:
        yield backend


@pytest.fixture
def run(small_backend: LocalBackend, tmp_path: Path):
    async def run(task: Task, agent: Agent) -> FinishedTrial:
        folder = tmp_path / "trials" / task.name
        result = await run_trial(
            task, attempt=1, agent=agent, backend=small_backend, run="test", directory=folder
        )
        return FinishedTrial(result.verdict, folder, result.phases)

    return run


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill the disk of a folder inside the context."""
    with (folder / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        (folder / "fill").unlink()


class WritesOnFullDisk(PlainAgent):
    """Writes its result while another process fills the disk, which is free again afterwards."""

    name = "unlucky"

    def __init__(self, disk: Path, backend: LocalBackend) -> None:
        self._disk = disk
        self._backend = backend

    async def run(self, assignment: Assignment) -> Outcome:
        script = "head -c 1M /dev/zero > /app/done || rm /app/done"
        with filled(self._disk):
            await assignment.sandbox.exec(script, on_output=assignment.on_output)
            await until(lambda: self._backend._disk.full, 60)
        await until(lambda: not self._backend._disk.short, 60)
        return Outcome()


async def test_a_full_disk_during_the_agent_is_not_graded(write_task, run, small, small_backend):
    ran = await run(write_task(test=ONE_IF_DONE), WritesOnFullDisk(small, small_backend))
    check_void(ran, Cause.SANDBOX, f"the disk of this host under {small} is full", "plimsoll clean")
    seen = [(evidence.what, evidence.where) for evidence in ran.verdict.evidence]
    assert seen == [
        ("graded 0, which was not used", ""),
        ("No space left on device", "agent/stderr.txt:1"),
    ]


async def test_a_briefly_full_disk_at_the_end_of_the_agent_is_not_graded(write_task, run):
    ran = await run(write_task(test=ONE_IF_DONE), Shell(FILL_FOR_A_MOMENT))
    check_void(ran, Cause.SANDBOX, "is full")


async def test_a_full_disk_during_the_tests_is_not_graded(write_task, run):
    test = f"echo 0 > /logs/verifier/reward.txt\n{FILL}"
    check_void(await run(write_task(test=test), Shell("true")), Cause.SANDBOX, "is full")


async def test_an_unwritten_reward_on_a_full_disk_does_not_count_against_the_task(write_task, run):
    test = f"{FILL}echo 1 > /logs/verifier/reward.txt\n"
    check_void(await run(write_task(test=test), Shell("true")), Cause.SANDBOX, "is full")


async def test_a_partial_reward_on_a_full_disk_is_not_graded(write_task, run):
    test = f"echo 0.5 > /logs/verifier/reward.txt\n{FILL}"
    check_void(await run(write_task(test=test), Shell("true")), Cause.SANDBOX, "is full")


async def test_the_best_reward_on_a_full_disk_is_valid(write_task, run, small, small_backend):
    test = "echo 1 > /logs/verifier/reward.txt\n"
    check_graded(await run(write_task(test=test), WritesOnFullDisk(small, small_backend)), 1.0)


async def test_a_solution_that_fails_on_a_full_disk_is_not_a_fault_of_the_task(write_task, run):
    files = {"solution/solve.sh": "head -c 200M /dev/zero > /fill\n"}
    ran = await run(write_task(files=files), Oracle())
    check_void(ran, Cause.SANDBOX, "is full", "solve.sh")


async def test_tests_that_do_not_fit_on_the_disk_are_void_and_the_disk_is_named(write_task, run):
    files = {"tests/large": "x" * (1 << 20)}
    ran = await run(write_task(files=files), Shell(FILL))
    check_void(ran, Cause.SANDBOX, "the disk of this host under", "is full", "upload of")
    assert ran.verdict.reason.count("is full") == 1


async def test_an_agent_that_only_prints_that_the_disk_is_full_is_graded(write_task, run):
    agent = "echo fine; echo 'cp: /app/x: No space left on device' >&2"
    ran = await run(write_task(test=ONE_IF_DONE), Shell(agent))
    check_graded(ran, 0.0, "No space left on device")
    assert [evidence.where for evidence in ran.verdict.evidence] == ["agent/stderr.txt:1"]


async def test_a_disk_that_was_full_before_the_trial_does_not_matter(
    write_task, run, small, small_backend
):
    with filled(small):
        await until(lambda: small_backend._disk.full, 60)
    check_graded(await run(write_task(test=ONE_IF_DONE), Shell("true")), 0.0)


@pytest.fixture
def reserving(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 MB with 10 MB free, and about 38 MB more reserved for root."""
    need("root", None if os.geteuid() == 0 else "only root can use the space reserved for root")
    with ext4(tmp_path / "reserving", 128, "-m", "30") as home:
        leave(home, 10 << 20)
        yield home


def leave(disk: Path, room: int) -> None:
    """Fill a disk until only this many bytes are free for users other than root."""
    with (disk / "fill").open("ab", buffering=0) as file:
        while (found := os.statvfs(disk)).f_bavail * found.f_frsize > room:
            file.write(bytes(4096))
        os.fsync(file.fileno())


async def trial_on(home: Path, task: Task, agent: str, directory: Path) -> FinishedTrial:
    async with LocalBackend(LocalOptions(home=home)) as backend:
        result = await run_trial(
            task, attempt=1, agent=Shell(agent), backend=backend, run="test", directory=directory
        )
    return FinishedTrial(result.verdict, directory, result.phases)


async def test_a_disk_with_space_only_for_root_that_fills_up_is_not_graded(
    write_task, reserving: Path, tmp_path: Path
):
    leave(reserving, 0)
    (reserving / "more").write_bytes(bytes(4 << 20))
    task = write_task(test=ONE_IF_DONE)
    ran = await trial_on(reserving, task, FILL_FOR_A_MOMENT, tmp_path / "trial")
    check_void(ran, Cause.SANDBOX, f"the disk of this host under {reserving} is full")


async def test_a_sandbox_that_uses_the_space_reserved_for_root_is_graded(
    write_task, reserving: Path, tmp_path: Path
):
    write = "head -c 8M /dev/zero > /tmp/$0"
    agent = f"sh -c '{write}' root; setpriv --reuid=65534 --clear-groups sh -c '{write}' other"
    all_written = "[ $(cat /tmp/root /tmp/other | wc -c) = 16777216 ]"
    test = f"{all_written}; echo $? > /logs/verifier/reward.txt\n"  # 0 if both files are complete
    ran = await trial_on(reserving, write_task(test=test), agent, tmp_path / "trial")
    check_graded(ran, 0.0)


async def test_a_pooled_sandbox_reports_its_full_disk(write_task, small: Path, tmp_path: Path):
    backend = LocalBackend(LocalOptions(home=small))
    pool = Pool(backend, PoolOptions(concurrency=1))
    async with pool:
        result = await run_trial(
            write_task(test=ONE_IF_DONE), attempt=1, agent=WritesOnFullDisk(small, backend),
            backend=pool, run="test", directory=tmp_path / "trial",
        )  # fmt: skip
    check_void(FinishedTrial(result.verdict, tmp_path / "trial", {}), Cause.SANDBOX, "is full")


async def test_a_full_memory_file_system_is_not_graded_and_the_next_trial_is_on_disk(
    write_task, tmp_path: Path
):
    task, big = write_task(test=ONE_IF_DONE), "head -c 60M /dev/zero > /app/big"
    options = LocalOptions(home=tmp_path / "home", upper="tmpfs", upper_mb=32)
    async with LocalBackend(options) as backend:

        async def trial(attempt: int) -> FinishedTrial:
            folder = tmp_path / "trials" / str(attempt)
            result = await run_trial(
                task, attempt=attempt, agent=Shell(f"{big} && echo x > done"), backend=backend,
                run="test", directory=folder,
            )  # fmt: skip
            return FinishedTrial(result.verdict, folder, result.phases)

        words = ("kept in memory, and 32 MB were not enough", "storage_mb", "[local] upper_mb")
        check_void(await trial(1), Cause.SANDBOX, *words)
        check_graded(await trial(2), 1.0)


async def test_files_in_memory_below_the_limit_are_graded(write_task, tmp_path: Path):
    options = LocalOptions(home=tmp_path / "home", upper="tmpfs", upper_mb=64)
    async with LocalBackend(options) as backend:
        folder = tmp_path / "trial"
        result = await run_trial(
            write_task(test=ONE_IF_DONE), attempt=1, agent=Shell("head -c 30M /dev/zero > big"),
            backend=backend, run="test", directory=folder,
        )  # fmt: skip
    check_graded(FinishedTrial(result.verdict, folder, result.phases), 0.0)


async def test_artifacts_that_do_not_fit_on_this_host_are_not_graded_as_missing(
    write_task, run, monkeypatch
):
    download = LocalSandbox.download

    async def full(self: LocalSandbox, source: str, target: Path, **bounds: int):
        if source == "/app/done":
            raise NoRoom(f"the disk of this host is full; free some space: download of {source}")
        return await download(self, source, target, **bounds)

    toml = 'artifacts = ["/app/done"]\n[verifier]\nenvironment_mode = "separate"\n'
    task = write_task(test=ONE_IF_DONE, toml=toml)
    monkeypatch.setattr(LocalSandbox, "download", full)
    ran = await run(task, Shell("echo x > done"))
    check_void(ran, Cause.SANDBOX, "the disk of this host is full")


async def test_a_trial_that_cannot_write_its_files_on_a_full_disk_is_not_a_bug(
    write_task, run, monkeypatch
):
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28), "/runs/x/verifier/stdout.txt")

    monkeypatch.setattr("plimsoll.trials.record.StepRecord.save_output", full)
    ran = await run(write_task(), Shell("true"))
    check_void(ran, Cause.SANDBOX, "the file system at / is full", "make room there")
    # All such trials have the same reason, so that the circuit breaker can group them.
    assert "verifier" not in ran.verdict.reason
