"""Power cuts: the ledger lost its last events, but the files of their trials exist."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from power_cuts import cut_power
from run_files import Plimsoll, Start, check_ledger, kill, prompts, rows, run_to_end, wait_for
from run_files import write_run as write_config

from plimsoll.ledger.events import Finished
from plimsoll.ledger.journal.journal import Journal
from plimsoll.workers.worker.trajectory_store import read_stored

ONE = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
ZERO_OR_NOTHING = "#!/bin/bash\n((RANDOM % 2)) || echo 0 > /logs/verifier/reward.txt\n"
STEPS, GROUPS, SIZE = 2, 4, 2
BEFORE = GROUPS * SIZE + 5
"""Trials that finish before the power cut: those of one batch, which are durable, and more."""


def write_run(folder: Path, agent: str) -> None:
    """Write a run of the oracle, or of an agent whose trajectories are stored in another folder."""
    config = write_config(folder, agent=agent, steps=STEPS, batch_groups=GROUPS, requeues=1000)
    if agent == "shell":
        (folder / "policy.toml").write_text('[[turns]]\nrun = "true"\n')
        with config.open("a") as file:
            file.write('[policy]\nurls = ["scripted:policy.toml"]\n')
            file.write(f'[storage]\ntrajectories = "file://{folder}/far"\n')


def graded(run: Path) -> dict[str, Finished]:
    """The `Finished` event of each ticket in the ledger."""
    journal = Journal.open(run / "ledger.db")
    events = [event for _, event in journal.read()]
    journal.close()
    return {event.ticket: event for event in events if isinstance(event, Finished)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("agent", ["oracle", pytest.param("shell", marks=pytest.mark.slow)])
def test_a_trial_undone_by_a_power_cut_has_no_reward(
    agent: str,
    write_task: Callable[..., Path],
    plimsoll: Plimsoll,
    start: Start,
    tmp_path: Path,
    mark: str,
):
    tasks = [write_task(f"t{number}", test=ONE) for number in range(4)]
    write_run(tmp_path, agent)
    run = tmp_path / "runs/night"
    process = start("run", "night.toml", "--out", "runs/night")
    wait_for(lambda: len(rows(run)) >= BEFORE, process, within=400)
    kill(process, mark)
    assert cut_power(run) > 0
    kept, dead = graded(run), rows(run)
    undone = {row["ticket"] for row in dead} - kept.keys()
    assert undone, "the power cut removed no finished trial"
    for task in tasks:
        (task / "tests/test.sh").write_text(ZERO_OR_NOTHING)

    assert run_to_end(start, "resume", "runs/night", "--keep-going")["problems"] == []
    made = {ticket: one for ticket, one in graded(run).items() if ticket not in kept}
    assert {one.reward for one in made.values()} == {0.0}
    assert len(prompts(run)) == len(set(prompts(run))) == STEPS * GROUPS

    done = [row for row in rows(run) if "trial" in row]
    again = [row for row in done[len(dead) :] if row["ticket"] in undone]
    assert {str(row["folder"]).rpartition("~")[2] for row in again} == {"2"}
    of_trial = {row["trial"]: row for row in done}
    assert len({row["folder"] for row in done}) == len(of_trial) == len(done)
    for trial, row in of_trial.items():
        assert json.loads((run / str(row["folder"]) / "verdict.json").read_text())["trial"] == trial
        if agent == "shell":
            read_stored(str(row["trajectory"]), str(trial))
    for ticket, one in made.items():
        assert of_trial[one.trial]["ticket"] == ticket
    check_ledger(plimsoll, "runs/night")
