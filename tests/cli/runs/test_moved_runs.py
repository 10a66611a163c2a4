"""A moved run directory keeps all results of the run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import Plimsoll, Start, check_ledger, kill, prompts, rows, run_to_end, wait_for
from training_files import GRADE, write_training

from plimsoll.ledger.events import Event, Finished, GroupVoided
from plimsoll.ledger.journal.journal import Journal

STEPS, GROUPS, SIZE = 3, 2, 2


def events(run: Path) -> list[Event]:
    journal = Journal.open(run / "ledger.db")
    try:
        return [event for _, event in journal.read()]
    finally:
        journal.close()


def steps(run: Path) -> int:
    """The number of steps in steps.jsonl."""
    file = run / "steps.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def finished_tickets(run: Path) -> set[str]:
    """The finished tickets in the ledger. A row may be written a moment earlier."""
    return {event.ticket for event in events(run) if isinstance(event, Finished)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_moved_training_resumes_with_all_finished_rollouts(
    write_task: Callable[..., Path], plimsoll: Plimsoll, start: Start, tmp_path: Path, mark: str
):
    for name in ("a", "b"):
        write_task(name, test=GRADE)
    write_training(tmp_path, steps=STEPS, batch_groups=GROUPS, group_size=SIZE)
    run = tmp_path / "runs/night"
    process = start("run", "night.toml", "--out", "runs/night")
    # One step is done, and rollouts of later batches have finished.
    wait_for(lambda: steps(run) and len(rows(run)) > GROUPS * SIZE, process, within=400)
    kill(process, mark)
    finished = finished_tickets(run)
    moved = tmp_path / "attic/other"
    moved.parent.mkdir()
    run.rename(moved)

    shown = json.loads(plimsoll("status", "attic/other", "--json").stdout)
    # The status file of a killed run may be a little older than its last step.
    assert shown["step"] <= steps(moved) < STEPS
    check_ledger(plimsoll, "attic/other")
    report = run_to_end(start, "resume", "attic/other")
    assert (report["steps"], report["problems"]) == (STEPS, [])
    assert sorted(prompts(moved)) == list(range(STEPS * GROUPS))
    made = [row["ticket"] for row in rows(moved) if row["verdict"] == "graded"]
    for ticket in finished:
        same_place = [one for one in made if one.rpartition(".")[0] == ticket.rpartition(".")[0]]
        assert same_place == [ticket], "a finished rollout was repeated"
    assert len(finished_tickets(moved)) == STEPS * GROUPS * SIZE
    assert not [event for event in events(moved) if isinstance(event, GroupVoided)]

    trial = next(row for row in rows(moved) if row["ticket"] in finished)
    assert "graded" in plimsoll("show", f"attic/other/{trial['folder']}").stdout
    exported = plimsoll("show", f"attic/other/{trial['trajectory']}", "--export", "jsonl")
    assert json.loads(exported.stdout.splitlines()[0])["ids"]
    for file in ("results.jsonl", "steps.jsonl", "status.json", "ledger.db"):
        assert str(run).encode() not in (moved / file).read_bytes(), file
    for manifest in (moved / "checkpoints").glob("*.json"):
        assert str(tmp_path) not in manifest.read_text()
