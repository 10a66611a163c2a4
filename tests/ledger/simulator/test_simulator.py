"""The simulator: every promise is kept in hundreds of runs with every fault, nightly in 20,000.

A run that ends has kept its promises: `Training.run` raises otherwise.
"""

import dataclasses
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from driven_run import settings
from worlds import JournalStore, plan_for, simulate_many

from parts import NIGHTLY
from plimsoll.ledger.rules import stragglers
from plimsoll.ledger.simulator.scenario import Faults, Plan
from plimsoll.ledger.simulator.training import Training

SEEDS = 20_000 if NIGHTLY else 600
CHUNK = 50


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_promise_is_kept_for_every_seed():
    chunks = [range(first, first + CHUNK) for first in range(0, SEEDS, CHUNK)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        totals = list(pool.map(simulate_many, chunks))
    assert sum(total.runs for total in totals) == SEEDS
    # The runs are not trivial: they have steps, crashes, rollbacks and old trained samples.
    assert sum(total.steps for total in totals) > 4 * SEEDS
    assert sum(total.crashes for total in totals) > SEEDS
    assert sum(total.rollbacks for total in totals) > SEEDS / 10
    assert sum(total.withheld for total in totals) > SEEDS / 100
    assert sum(total.quarantined for total in totals) > SEEDS / 10
    assert max(total.max_age for total in totals) >= 5


SMALL = Plan(
    settings=settings(batch_groups=2, depth=1, max_staleness=2, group_size=2, requeues=2),
    steps=4,
    tasks=6,
    durations="stragglers",
    slack=0.5,
    watchdog=20.0,
    evaluate_every=2,
    early=0.5,
    checkpoint_every=2,
)


@pytest.mark.parametrize("power", [0.0, 1.0], ids=["killed", "power lost"])
@pytest.mark.parametrize("adopted", [0.0, 1.0], ids=["workers lost", "workers adopted"])
def test_a_crash_at_every_write_of_a_run(power: float, adopted: float):
    writes = Training(SMALL).run().writes
    assert writes > 50
    for write in range(1, writes + 1):
        for seed in range(2):  # the event of that write may be on disk or not
            faults = Faults(
                void=0.1, doubled=0.2, crash_at=write, power=power, adopted=adopted, late=0.2
            )
            plan = dataclasses.replace(SMALL, faults=faults, seed=seed)
            run = Training(plan).run()
            assert run.steps == 4
            assert run.crashes <= 1


def test_a_crash_at_every_write_twice_with_other_settings():
    changed = settings(batch_groups=1, depth=0, max_staleness=0, group_size=1)
    writes = Training(SMALL).run().writes
    for write in range(1, writes + 1):
        faults = Faults(crash_every=write, crashes=2, new_settings=(changed,))
        assert Training(dataclasses.replace(SMALL, faults=faults, seed=write)).run().steps == 4


@pytest.mark.timeout(300)
def test_the_same_holds_on_the_real_journal(tmp_path: Path):
    for seed in range(300 if NIGHTLY else 60):
        plan = plan_for(seed)
        faults = dataclasses.replace(plan.faults, power=0.0)  # a test cannot cut the power
        store = JournalStore(tmp_path / f"{seed}.db")
        on_disk = Training(dataclasses.replace(plan, faults=faults), store=store).run()
        store.close()
        in_memory = Training(dataclasses.replace(plan, faults=faults)).run()
        assert on_disk.batches == in_memory.batches


def test_a_run_is_a_function_of_its_seed():
    for seed in range(20):
        assert Training(plan_for(seed)).run() == Training(plan_for(seed)).run()


@pytest.mark.parametrize("durations", ["constant", "lognormal", "stragglers", "hung"])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_step_takes_a_bounded_time(durations, resumes: bool):
    """Without crashes, a step waits at most for the slowest rollouts with all their retries."""
    rules = settings(batch_groups=4, depth=2, max_staleness=4, group_size=2, requeues=3)
    longest = 20.0
    for seed in range(20):
        plan = Plan(
            settings=rules,
            steps=30,
            durations=durations,
            watchdog=longest,
            slack=1.0,
            resumes=resumes,
            seed=seed,
            check_every=50,
        )
        run = Training(plan).run()
        assert run.steps == 30
        tries = 1 + (3 if durations in ("stragglers", "hung") else 0)
        assert run.longest_step <= plan.step_seconds + tries * (longest + plan.slack)


def test_hung_rollouts_do_not_stop_a_run_that_has_others():
    """Without the remedies for stragglers each would block the trainer until the watchdog."""
    rules = settings(batch_groups=8, depth=2, max_staleness=4, requeues=9)
    plan = Plan(settings=rules, steps=60, durations="hung", watchdog=500.0, slack=1.0)
    run = Training(plan).run()
    assert run.seconds / run.steps < 3.0


@pytest.mark.parametrize("resumes", [False, True])
def test_hung_rollouts_delay_neither_a_run_nor_its_end(
    resumes: bool, monkeypatch: pytest.MonkeyPatch
):
    """Only the remedies end them, and at the end the groups that replace them."""
    monkeypatch.setattr(stragglers, "MOST_RESUMES", 1)  # with more, all slots may hang at once
    rules = settings(batch_groups=2, depth=2, max_staleness=3, group_size=2, requeues=9)
    never = 1e9
    for seed in range(40):
        plan = Plan(
            settings=rules,
            steps=20,
            durations="hung",
            watchdog=never,
            slack=1.0,
            resumes=resumes,
            ends=True,
            seed=seed,
            check_every=50,
        )
        run = Training(plan).run()
        assert run.steps == 20
        assert run.seconds < never, f"seed {seed}"


def test_unstarted_tickets_do_not_age_when_workers_are_scarce():
    rules = settings(batch_groups=2, depth=3, max_staleness=3)
    plan = Plan(settings=rules, steps=20, durations="constant", workers=1, step_seconds=0.1)
    run = Training(plan)
    assert run.run().steps == 20
    assert run.accounts.books.tally.voided == 0
