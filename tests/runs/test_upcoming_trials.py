"""Announced orders of a run: pending tickets, then evaluations, then usable prompts."""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollout_runs import MakeConfig

from plimsoll.config.file import Config
from plimsoll.ledger.data_order import DataOrder, Epoch
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.breaker.breaker import Breaker, BreakerMonitor
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.evaluation.held_out import held_out_set
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.runs.scheduling.trial_set import TrialSets
from plimsoll.runs.scheduling.upcoming_trials import UpcomingTrials
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.trials.verdicts import Cause, Void

BROKEN = Void(Cause.TASK, "broken")


class Books:
    """A real ledger of a plan, and its announced orders."""

    def __init__(self, plan: Plan, ledger: Ledger, canaries: Canaries | None) -> None:
        self.plan = plan
        self.ledger = ledger
        self.order: DataOrder = plan.order()
        self.evaluations = TrialSets(ledger)
        watching = BreakerMonitor(Breaker(BreakerLimits()), canaries, plan.tasks, 1)
        self.trials = UpcomingTrials(plan, self.order, ledger, self.evaluations, watching)

    def upcoming(self, slots: int = 100, *, trains: bool = True) -> list[str]:
        waiting = self.ledger.accounts.waiting()
        kinds = self.trials.next(waiting, slots, is_stopped=not trains)
        assert all(Path(kind.task).name == kind.name for kind in kinds)
        return [f"{kind.agent}:{kind.name}" if kind.agent else kind.name for kind in kinds]

    def evaluate(self, name: str, tasks: list[str], attempts: int) -> None:
        """Begin an evaluation of held-out tasks."""
        known = [self.plan.held_out.tasks[task] for task in tasks]
        directory = RunDirectory(self.ledger.path.parent)
        self.evaluations.begin(held_out_set(name, name, known, attempts, directory))

    def prompts(self, *numbers: int) -> list[str]:
        """The tasks of prompts, each repeated for every trial of a group."""
        size = self.plan.settings.group_size
        turns = list(itertools.islice(self.order.upcoming(Epoch()), max(numbers, default=-1) + 1))
        return [turns[n] for n in numbers if n < len(turns) for _ in range(size)]

    async def give_up(self, why: Void) -> str:
        """Admit a group and void all its members. Returns its task."""
        (group,) = await self.ledger.admit(self.order, 1)
        for index, member in enumerate(group.members):
            while (found := self.ledger.books.find(group.ticket(index))) and found[1] is member:
                await self.ledger.start(group.ticket(index), "me")
                await self.ledger.void(group.ticket(index), why)
        return group.task


@asynccontextmanager
async def books(
    config: Config, folder: Path, canaries: Canaries | None = None
) -> AsyncIterator[Books]:
    plan = Plan.make(config)
    folder.mkdir()
    async with Ledger(folder, plan.settings, this_process(), time.time) as ledger:
        yield Books(plan, ledger, canaries)


async def test_prompts_come_in_order_and_at_most_one_per_slot(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", "coin-c", steps=4, max_running=100)
    async with books(config, tmp_path / "run") as run:
        assert run.upcoming(slots=5) == run.prompts(0, 1, 2)[:5]
        assert run.upcoming(slots=0) == []
        await run.ledger.admit(run.order)
        admitted = sorted(group.prompt for group in run.ledger.books.groups.values())
        # Admitted, pending tickets come before those that are admitted next.
        assert run.upcoming(slots=100)[: 2 * len(admitted)] == run.prompts(*admitted)


async def test_upcoming_trials_respect_the_cap_on_running_trials(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", steps=40, max_running=4)
    async with books(config, tmp_path / "run") as run:
        assert len(run.upcoming(slots=100)) == 4


async def test_there_are_no_upcoming_trials_after_the_last_step_or_epoch(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", steps=1, max_running=100)
    async with books(config, tmp_path / "run") as run:
        assert run.upcoming() == run.prompts(0, 1)  # a batch of two groups
        for group in await run.ledger.admit(run.order, 2):
            for index in range(len(group.members)):
                await run.ledger.start(group.ticket(index), "me")
        assert run.upcoming() == []
    run_config = config.model_copy(
        update={"run": config.run.model_copy(update={"steps": None, "epochs": 1})}
    )
    async with books(run_config, tmp_path / "other") as run:
        assert run.upcoming() == run.prompts(0, 1)


async def test_a_stopped_run_has_no_upcoming_training_trials(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", steps=4, heldout=("coin-z",), attempts=3)
    async with books(config, tmp_path / "run") as run:
        assert run.upcoming(trains=False) == []
        run.evaluate("after", ["coin-z"], 3)
        assert run.upcoming(trains=False) == ["coin-z"] * 3


async def test_held_out_tasks_come_before_training(make_config: MakeConfig, tmp_path: Path):
    config = make_config("coin-a", steps=4, heldout=("coin-y", "coin-z"), attempts=2, max_running=8)
    async with books(config, tmp_path / "run") as run:
        run.evaluate("before", ["coin-y", "coin-z"], 2)
        held_out = ["coin-y", "coin-y", "coin-z", "coin-z"]
        assert run.upcoming() == [*held_out, *run.prompts(0, 1)]
        await run.evaluations.admit(training_is_over=False)
        assert run.upcoming() == [*held_out, *run.prompts(0, 1)], (
            "waiting orders are announced, too"
        )


async def test_a_requeued_prompt_is_next(make_config: MakeConfig, tmp_path: Path):
    config = make_config("coin-a", "coin-b", steps=40, max_running=100)
    async with books(config, tmp_path / "run") as run:
        await run.give_up(Void(Cause.LOST, "its worker is gone"))
        assert run.upcoming()[:4] == run.prompts(0, 1)


async def test_a_trial_of_an_excluded_task_is_never_upcoming(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", steps=40, max_running=100, requeues=0)
    async with books(config, tmp_path / "run") as run:
        broken = await run.give_up(BROKEN)
        while broken not in run.ledger.books.quarantined:
            await run.give_up(BROKEN)
        assert set(run.upcoming()) == {"coin-a", "coin-b"} - {broken}
        while len(run.ledger.books.quarantined) < 2:
            await run.give_up(BROKEN)
        assert run.upcoming() == []


async def test_a_canary_that_is_due_soon_is_upcoming(make_config: MakeConfig, tmp_path: Path):
    config = make_config("coin-a", "coin-b", steps=40)
    canaries = Canaries.of(3, ["coin-b"])
    async with books(config, tmp_path / "run", canaries) as run:
        assert run.upcoming(slots=2) == run.prompts(0)
        canaries.trial_started()
        assert run.upcoming(slots=2) == ["oracle:coin-b", *run.prompts(0)[:1]]
        assert run.upcoming(slots=2, trains=False) == []
