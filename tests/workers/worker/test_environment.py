"""The environment of a worker while trials run, and the absence of leftovers afterwards."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from helpers import HOST, long_time, processes_with, write_task_folder
from plimsoll.config.file import Config
from plimsoll.core.errors import PolicyError, TrajectoryError, TrajectoryGone, UsageError
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.sessions.pending_request import PendingRequest
from plimsoll.ledger.events import Segment
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.testing.waiting import until
from plimsoll.trajectories.graph import Graph
from plimsoll.trajectories.holding import GroupHolding, Holding, Loan
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.messages import EnvironmentOptions, Finished, FromWorker, Order, Result
from plimsoll.workers.worker import trajectory_store
from plimsoll.workers.worker.environment import TrialEnvironment, trial_environment
from plimsoll.workers.worker.heartbeat import Load
from plimsoll.workers.worker.running_tickets import RunningTickets
from plimsoll.workers.worker.trajectory_store import read_stored

POLICY = """
otherwise = "Done."

[[turns]]
text = "I do it."
run = "{command}"

[[turns]]
submit = true
text = "Done."
"""
HELD = (PendingRequest, Graph, Trajectory, Holding, Loan)
"""Types that hold bodies, messages or tokens."""


class Setting:
    """A run directory, its one task and its policy, which runs one command."""

    def __init__(self, folder: Path, home: Path, command: str = "touch /app/done") -> None:
        self.directory = folder / "run"
        self.directory.mkdir()
        self.task = folder / "tasks" / "touch"
        write_task_folder(
            self.task,
            {
                "instruction.md": "Make the file /app/done.\n",
                "environment/Dockerfile": HOST,
                "tests/test.sh": "test -e /app/done && r=1 || r=0\n"
                "echo $r > /logs/verifier/reward.txt\n",
                "solution/solve.sh": "touch /app/done\n",
            },
        )
        script = folder / "policy.toml"
        script.write_text(POLICY.format(command=command))
        self.config = Config.model_validate(
            {
                "run": {"tasks": str(folder / "tasks"), "agent": "shell"},
                "policy": {"urls": [f"scripted:{script}"]},
                "local": {"home": str(home)},
                "workers": {"concurrency": 4},
            }
        )

    def order(self, ticket: str = "g/0", **more: str) -> Order:
        folder = str(self.directory / "trials" / f"touch.{ticket.replace('/', '_')}")
        given = {"task": str(self.task), "name": self.task.name, "folder": folder, **more}
        return Order(ticket=ticket, attempt=1, **given)

    def stored(self, result: Result) -> str:
        return RunDirectory(self.directory).stored(result.trajectory)

    @asynccontextmanager
    async def environment(self, **tables: dict[str, object]) -> AsyncIterator[TrialEnvironment]:
        config = Config.model_validate({**self.config.model_dump(mode="json"), **tables})
        options = EnvironmentOptions(
            config=msgspec.Raw(config.model_dump_json().encode()),
            directory=str(self.directory),
            stored_as="night-1",
        )
        async with trial_environment(options) as environment:
            yield environment


@pytest.fixture
def setting(tmp_path: Path, home: Path) -> Setting:
    return Setting(tmp_path, home)


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection: objects are freed by their last reference only."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def check_released(environment: TrialEnvironment) -> None:
    assert set(environment.counts().values()) == {0}, environment.counts()
    left = [type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, HELD)]
    assert left == []


def check_stored(setting: Setting, result: Result, path: str) -> Trajectory:
    assert result.trajectory == path
    trajectory = read_stored(setting.stored(result), result.trial)
    assert trajectory.complete
    assert len(trajectory.exchanges) == 2
    return trajectory


async def test_a_graded_rollout_leaves_only_its_trajectory(setting: Setting):
    async with setting.environment() as environment:
        with no_collections():
            result = await environment.run(setting.order())
            check_released(environment)
    assert result.verdict == Graded(1.0, result.verdict.ending, {"reward": 1.0})
    check_stored(setting, result, "trajectories/g_0.jsonl.zst")
    assert (Path(setting.order().folder) / "trajectory.jsonl.zst").exists(), "`show` reads it here"
    assert result.sandbox_seconds is not None and result.sandbox_seconds > 0


@pytest.mark.parametrize("storage", ["own", "memory"])
async def test_a_repeated_ticket_has_its_own_files(setting: Setting, storage: str):
    url = None if storage == "own" else f"memory://{setting.directory}"
    async with setting.environment(storage={"trajectories": url}) as environment:
        first, second = [await environment.run(setting.order()) for _ in range(2)]
    assert (first.folder, second.folder) == ("", f"{setting.order().folder}~2")
    assert Path(first.trajectory).name == "g_0.jsonl.zst"
    assert Path(second.trajectory).name == "g_0~2.jsonl.zst"
    for result in (first, second):
        exchanges = read_stored(setting.stored(result), result.trial).exchanges
        tokens = sum(exchange.answer_tokens or 0 for exchange in exchanges)
        assert result.segments == (Segment(FIRST_VERSION, tokens),)
    with pytest.raises(TrajectoryGone, match=f"of the trial {second.trial}, not of {first.trial}"):
        read_stored(setting.stored(second), first.trial)


async def test_segments_have_the_number_of_tokens_of_each_version(setting: Setting):
    async with setting.environment() as environment:
        first = await environment.run(setting.order("g/0"))
        environment.set_version(Version(1, 5))
        second = await environment.run(setting.order("g/1"))
    exchanges = read_stored(setting.stored(first)).exchanges
    tokens = sum(exchange.answer_tokens or 0 for exchange in exchanges)
    assert tokens > 0
    assert first.segments == (Segment(FIRST_VERSION, tokens),)
    assert second.segments == (Segment(Version(1, 5), tokens),)


async def test_a_failed_rollout_leaves_nothing(setting: Setting):
    (setting.task / "tests" / "test.sh").write_text("exit 1\n")
    async with setting.environment() as environment:
        with no_collections():
            result = await environment.run(setting.order())
            check_released(environment)
    assert isinstance(result.verdict, Void) and result.verdict.cause is Cause.GRADER


async def test_a_cancelled_rollout_leaves_nothing(tmp_path: Path, home: Path):
    seconds = long_time()
    setting = Setting(tmp_path, home, command=f"sleep {seconds}")
    messages: list[FromWorker] = []
    async with setting.environment() as environment:
        tickets = RunningTickets(environment, Load(), messages.append)
        with no_collections():
            tickets.take(setting.order())
            await until(lambda: processes_with(seconds))
            assert environment.counts()["sandboxes"] == environment.counts()["sessions"] == 1
            tickets.cancel("g/0", Void(Cause.CANCELLED, "too old"))
            await tickets.wait_empty()
            check_released(environment)
        assert not processes_with(seconds)
    assert isinstance(messages[-1], Finished)
    assert messages[-1].result.verdict == Void(Cause.CANCELLED, "too old")


async def test_a_task_that_cannot_be_loaded_is_a_void_trial(setting: Setting):
    async with setting.environment() as environment:
        messages: list[FromWorker] = []
        tickets = RunningTickets(environment, Load(), messages.append)
        tickets.take(setting.order(task=str(setting.task.parent / "none")))
        await tickets.wait_empty()
        check_released(environment)
    (message,) = messages
    assert isinstance(message, Finished)
    verdict = message.result.verdict
    assert isinstance(verdict, Void) and verdict.cause is Cause.TASK


async def test_concurrent_rollouts_are_counted_and_leave_nothing(setting: Setting):
    async with setting.environment() as environment:
        running = [asyncio.create_task(environment.run(setting.order(f"g/{n}"))) for n in range(4)]
        await asyncio.sleep(0)
        assert environment.counts()["trials"] == 4
        results = await asyncio.gather(*running)
        running.clear()
        check_released(environment)
    assert {Path(result.trajectory).name for result in results} == {
        f"g_{n}.jsonl.zst" for n in range(4)
    }


async def test_an_order_may_name_another_agent(setting: Setting):
    async with setting.environment() as environment:
        result = await environment.run(setting.order(agent="oracle", name="tasks/touch"))
    assert isinstance(result.verdict, Graded) and result.verdict.reward == 1
    assert (result.trajectory, result.segments) == ("", ())
    verdict = msgspec.json.decode((Path(setting.order().folder) / "verdict.json").read_bytes())
    assert verdict["task"] == "tasks/touch"


async def test_trajectories_are_only_in_the_configured_storage(setting: Setting):
    async with setting.environment(
        storage={"trajectories": "memory://bucket/night"}
    ) as environment:
        result = await environment.run(setting.order())
    check_stored(setting, result, "memory://bucket/night/night-1/trajectories/g_0.jsonl.zst")
    assert not list(setting.directory.rglob("*.zst*"))


async def test_a_trial_without_a_stored_trajectory_is_void(setting: Setting):
    (setting.directory / "trajectories").write_text("in the way")
    async with setting.environment() as environment:
        result = await environment.run(setting.order())
        check_released(environment)
    assert isinstance(result.verdict, Void) and "cannot be stored" in result.verdict.reason
    assert result.trajectory == ""


async def test_unresponsive_storage_voids_the_trial_and_delays_no_other(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
):
    answers = threading.Event()
    monkeypatch.setattr(MemoryFileSystem, "put_file", lambda *_, **__: answers.wait())
    monkeypatch.setattr(trajectory_store, "_SECONDS", 0.5)
    try:
        async with setting.environment(
            storage={"trajectories": "memory://bucket/night"}
        ) as environment:
            # Fewer threads than hung uploads: a shared pool would be exhausted.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
            for number in range(3):
                result = await environment.run(setting.order(f"g/{number}"))
                assert isinstance(result.verdict, Void) and result.verdict.cause is Cause.SANDBOX
                assert result.verdict.reason.endswith("night-1: not finished within 0.5 s")
                assert result.trajectory == ""
            assert environment.counts()["trajectories"] == 0
    finally:
        answers.set()


async def test_an_unreachable_policy_fails_the_start_of_the_environment(setting: Setting):
    with pytest.raises(PolicyError):
        async with setting.environment(policy={"urls": ["http://127.0.0.1:1/v1"]}):
            pass
    with pytest.raises(UsageError, match=r"storage\.trajectories"):
        async with setting.environment(storage={"trajectories": "no-such-scheme://x"}):
            pass


async def test_scoring_in_a_task_can_read_the_trajectories_of_the_group(setting: Setting):
    """The group holds the trajectories of its members; a loan keeps none of them alive."""

    async def child(loan: Loan) -> int:
        await asyncio.sleep(0.01)
        return len(loan.trajectory.exchanges)

    async with setting.environment() as environment:
        results = [await environment.run(setting.order(f"g/{n}")) for n in range(2)]
        with no_collections():
            loans: list[Loan] = []
            with GroupHolding() as group:
                for result in results:
                    with Holding(read_stored(setting.stored(result))) as rollout:
                        loans.append(group.adopt(rollout))
                del rollout
                async with asyncio.TaskGroup() as tasks:
                    found = [tasks.create_task(child(loan)) for loan in loans]
                assert [one.result() for one in found] == [2, 2]
            with pytest.raises(TrajectoryError, match="has left memory"):
                await child(loans[0])
            del group, loans, found, tasks
            check_released(environment)
