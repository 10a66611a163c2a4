"""A training that is killed repeatedly at random points, compared with an undisturbed one.

PLIMSOLL_TEST_KILLS sets the number of kills, PLIMSOLL_TEST_SEED the seed of their times.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import Start, prompts, rows, run_to_end, wait_for
from training_files import GRADE, final_weights, lines, write_training

from plimsoll.ledger.report import make_report

KILLS = int(os.environ.get("PLIMSOLL_TEST_KILLS", "2"))
SEED = int(os.environ.get("PLIMSOLL_TEST_SEED", str(time.time_ns() % 100_000)))
STEPS, GROUPS = 4, 2
PROCESS_SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PROCESS_SECONDS * (2 * KILLS + 3))]


@pytest.fixture
def write(write_task: Callable[..., Path], tmp_path: Path) -> Callable[..., None]:
    """Writes a training of a few steps."""

    def write(**training: object) -> None:
        for name in ("a", "b", "c"):
            write_task(name, test=GRADE)
        write_training(tmp_path, training=training, steps=STEPS, batch_groups=GROUPS)

    return write


def kill_repeatedly(start: Start, folder: Path, run: str, rng: random.Random) -> int:
    """Start or resume a training KILLS times, and kill it at random moments of its work.

    Returns the number of kills that hit it before its end.
    """
    kills = 0
    for _ in range(KILLS):
        args = ("resume", run) if (folder / run / "ledger.db").exists() else (
            "run", "night.toml", "--out", run,
        )  # fmt: skip
        process = start(*args)
        began = time.monotonic()
        status, steps = folder / run / "status.json", folder / run / "steps.jsonl"
        seen = status.stat().st_mtime_ns if status.exists() else 0
        before = len(steps.read_text().splitlines()) if steps.exists() else 0
        while process.poll() is None and time.monotonic() - began < PROCESS_SECONDS:
            if status.exists() and status.stat().st_mtime_ns != seen:
                break  # the workers are starting: from now on the training works
            time.sleep(0.02)
        if not status.exists():
            process.kill()
            pytest.fail("\n".join(process.communicate()))
        # A fast training is killed in its last step at the latest, before it ends.
        left = STEPS - 1 - json.loads(status.read_text())["step"]
        moment = time.monotonic() + rng.uniform(0, 6)
        while time.monotonic() < moment:
            if steps.exists() and len(steps.read_text().splitlines()) - before >= left:
                break
            time.sleep(0.01)
        process.kill()
        out, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), out + err
        kills += process.returncode != 0
    return kills


def check_steps(run: Path, report: dict[str, Any]) -> None:
    """Check that all steps are recorded, each prompt is used once, and the ledger is sound."""
    assert (report["done"], report["steps"], report["problems"]) == (True, STEPS, [])
    assert len(report["rewards"]) == STEPS
    assert sorted(prompts(run)) == list(range(STEPS * GROUPS))
    assert make_report(run, check=True, task=None).problems == []
    assert [line["step"] for line in lines(run / "steps.jsonl")] == list(range(1, STEPS + 1))


@pytest.fixture
def rng() -> random.Random:
    print(f"PLIMSOLL_TEST_SEED={SEED}")
    return random.Random(SEED)


def test_a_killed_training_reaches_the_same_weights(
    write: Callable[..., None], start: Start, tmp_path: Path, rng: random.Random
):
    write(checkpoint_every=1)
    expected = run_to_end(start, "run", "night.toml", "--out", "undisturbed")
    assert len(set(expected["rewards"])) > 1, "all rewards are equal: the training learned nothing"
    for every in (1, 3):
        write_training(tmp_path, training={"checkpoint_every": every}, steps=STEPS)
        run = f"killed-{every}"
        assert kill_repeatedly(start, tmp_path, run, rng), "no kill hit the training"
        report = run_to_end(start, "resume", f"./{run}")
        check_steps(tmp_path / run, report)
        assert report["rewards"] == expected["rewards"]
        found = final_weights(tmp_path / run)
        for name, tensor in final_weights(tmp_path / "undisturbed").items():
            # After a kill, answers are generated in other batches. Their log probabilities differ
            # by float error, which Adam enlarges. A step moves a weight by up to 0.01.
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4)


def test_a_killed_asynchronous_training_uses_each_prompt_once(
    write: Callable[..., None], start: Start, tmp_path: Path, rng: random.Random
):
    write(mode="async", checkpoint_every=2)
    kills = kill_repeatedly(start, tmp_path, "killed", rng)
    report = run_to_end(start, "resume", "killed")
    assert kills, "no kill hit the training"
    check_steps(tmp_path / "killed", report)
    assert report["max_age"] <= report["eta"] == 2


def test_missing_trajectories_of_a_killed_training_are_rolled_out_again(
    write: Callable[..., None], start: Start, tmp_path: Path
):
    write()
    run = tmp_path / "run"
    process = start("run", "night.toml", "--out", "run")
    wait_for(lambda: len(rows(run)) >= GROUPS * 2, process)
    process.kill()
    process.wait()
    stored = [run / str(row["trajectory"]) for row in rows(run) if row["trajectory"]]
    stored[0].unlink()
    stored[1].write_bytes(stored[1].read_bytes()[:-20])
    report = run_to_end(start, "resume", "run")
    check_steps(run, report)
    lost = [str(row["reason"]) for row in rows(run) if row["cause"] == "lost"]
    assert any(stored[0].name in why or stored[1].name in why for why in lost)
