"""`plimsoll simulate`: the ledger is about as fast as the counter form and keeps its bound."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest


def simulated(plimsoll, *args: str) -> dict[str, dict]:
    done = plimsoll("simulate", "--json", *args)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    fields = {"policy", "time_per_step", "max_age", "wasted", "duration_bias", "idle"}
    assert all(row.keys() == fields for row in rows)
    return {row["policy"]: row for row in rows}


@pytest.mark.parametrize("durations", ["lognormal", "stragglers", "hung"])
def test_the_ledger_is_as_fast_as_counters_within_the_bound_on_age(plimsoll, durations: str):
    rows = simulated(plimsoll, "--durations", durations, "--tau", "2", "--eta", "8")
    assert list(rows) == [
        "synchronous", "counter", "counter, recovered", "strict fifo", "plimsoll"
    ]  # fmt: skip
    ours, counter = rows["plimsoll"], rows["counter"]
    assert ours["max_age"] <= 8
    assert counter["max_age"] >= 30
    assert ours["time_per_step"] <= 1.1 * counter["time_per_step"]
    assert ours["time_per_step"] <= 1.1 * rows["counter, recovered"]["time_per_step"]
    assert rows["synchronous"]["time_per_step"] >= 4 * ours["time_per_step"]
    assert 0 < ours["duration_bias"] <= 1.05
    assert all(0 <= row["wasted"] < 1 and 0 <= row["idle"] < 1 for row in rows.values())


def test_with_equal_durations_only_the_synchronous_rule_leaves_the_trainer_idle(plimsoll):
    rows = simulated(plimsoll, "--durations", "constant", "--no-restart")
    assert rows["synchronous"]["time_per_step"] == pytest.approx(2.0)
    for name in ("counter", "counter, recovered", "strict fifo", "plimsoll"):
        assert rows[name]["time_per_step"] == pytest.approx(1.0, abs=0.02)
        assert rows[name]["max_age"] <= 2
    assert rows["plimsoll"]["wasted"] < 0.05


def test_without_a_restart_the_counters_need_no_recovery(plimsoll):
    rows = simulated(plimsoll, "--no-restart", "--steps", "60")
    counter, recovered = rows["counter"], rows["counter, recovered"]
    assert {**counter, "policy": ""} == {**recovered, "policy": ""}


def test_the_same_seed_gives_the_same_rows(plimsoll):
    first = simulated(plimsoll, "--steps", "30", "--seed", "4")
    assert simulated(plimsoll, "--steps", "30", "--seed", "4") == first
    assert simulated(plimsoll, "--steps", "30", "--seed", "5") != first


def test_simulate_prints_a_table_and_writes_a_plot(plimsoll, tmp_path: Path):
    plot = tmp_path / "plot.svg"
    done = plimsoll("simulate", "--steps", "20", "--plot", str(plot))
    assert (done.returncode, done.stderr) == (0, "")
    assert "B 8 · C 24 · τ 2 · η 8" in done.stdout
    assert "max age: η = 8 is allowed" in done.stdout
    root = ElementTree.parse(plot).getroot()
    names = [element.text for element in root.iter() if element.tag.endswith("}title")]
    assert names.count("plimsoll") == 2
    assert len(names) == 10


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--eta", "1", "--tau", "2"), "max_staleness must be at least depth"),
        (("--batch-groups", "0"), "0 is not in the range"),
        (("--group-size", "0"), "0 is not in the range"),
        (("--slack", "nan"), "not nan"),
        (("--step-seconds", "inf"), "inf is not in the range"),
        (("--max-running", "1", "--group-size", "2"), "max_running must be at least group_size"),
        (("--durations", "endless"), "'endless' is not one of"),
        (("--plot", "/nowhere/at/all.svg", "--steps", "2"), "cannot write /nowhere/at/all.svg"),
    ],
)
def test_impossible_settings_are_refused(plimsoll, args: tuple[str, ...], said: str):
    done = plimsoll("simulate", *args)
    assert done.returncode == 2
    assert said in done.stderr
