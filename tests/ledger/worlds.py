"""Simulated runs of every kind, each a function of its seed."""

import random

from plimsoll.ledger.settings import Settings
from plimsoll.ledger.sim.durations import DURATIONS
from plimsoll.ledger.sim.faults import Faults
from plimsoll.ledger.sim.plan import Plan, Run
from plimsoll.ledger.sim.training import Training


def settings_for(rng: random.Random) -> Settings:
    depth = rng.randint(0, 3)
    size = rng.randint(1, 3)
    batch = rng.randint(1, 4)
    return Settings(
        batch_groups=batch,
        max_running=rng.choice([size, size * batch, size * batch * (depth + 1), 50]),
        depth=depth,
        max_staleness=depth + rng.choice([0, 0, 1, 3]),
        group_size=size,
        group_policy=rng.choice(["complete", "min_graded", "void"]),
        min_graded=rng.randint(1, size),
        requeues=rng.randint(0, 4),
    )


def faults_for(rng: random.Random) -> Faults:
    crashes = rng.random() < 0.6
    return Faults(
        void=rng.choice([0, 0, 0.05, 0.2]),
        dropped=rng.choice([0, 0, 0.05]),
        doubled=rng.choice([0, 0.1, 0.5]),
        late=rng.choice([0, 0.2]),
        crash_every=rng.randint(3, 60) if crashes else 0,
        crashes=rng.randint(1, 10),
        power=rng.choice([0, 0.3, 1]),
        adopted=rng.choice([0, 0.5, 1]),
        new_settings=tuple(settings_for(rng) for _ in range(rng.choice([0, 0, 2]))),
    )


def plan_for(seed: int) -> Plan:
    """A small run of any kind. Most check the books now and then, some after everything."""
    rng = random.Random(seed)
    settings = settings_for(rng)
    return Plan(
        settings=settings,
        steps=rng.randint(3, 8),
        tasks=rng.choice([3, 40]),
        durations=rng.choice(list(DURATIONS)),
        step_seconds=rng.choice([0.1, 1.0, 5.0]),
        slack=rng.choice([0.0, 1.0, 10.0]),
        resumes=rng.random() < 0.3,
        workers=rng.choice([0, 0, 0, settings.group_size, 1]),
        watchdog=rng.choice([20.0, 200.0]),
        checkpoint_every=rng.choice([1, 1, 2, 3]),
        evaluate_every=rng.choice([0, 0, 1, 2]),
        faults=faults_for(rng),
        seed=seed,
        check_every=1 if seed % 10 == 0 else 20,
    )


def simulate(seed: int) -> Run:
    return Training(plan_for(seed)).run()
