"""The demo is run as a person runs it: in a few steps it trains, in all of them it learns."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parts import NIGHTLY

ROOT = Path(__file__).parents[3]
FEWER = {"steps = 20": "steps = 2", "batch_groups = 8": "batch_groups = 3", "attempts = 4": ""}
"""What a short demo has instead of the values of its config."""


def run_demo(config: Path, out: Path) -> dict[str, Any]:
    """Run it to its end, and check all that holds after any number of steps."""
    ended = subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", str(config), "--json", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["max_age"] <= told["eta"]
    assert told["quarantined"] == ["needs-internet"]
    assert "example.invalid" in told["out"]["needs-internet"]
    assert told["graded"] == told["trials"] and told["void"] == {}
    assert told["problems"] == []
    picture = out / "training.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and str(picture) in ended.stderr
    return told


@pytest.mark.slow
def test_the_demo_trains_on_its_tasks_and_measures_held_out_ones(tmp_path: Path, sandboxes: None):
    text = (ROOT / "examples/demo.toml").read_text()
    for value, less in FEWER.items():
        assert value in text
        text = text.replace(value, less)
    config = tmp_path / "demo.toml"
    config.write_text(text.replace('"demo/', f'"{ROOT}/examples/demo/'))
    told = run_demo(config, tmp_path / "demo")
    assert told["steps"] == 2
    assert 0 <= told["heldout_before"] <= 1
    assert 0 <= told["heldout_after"] <= 1


@pytest.mark.nightly
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes: make test-nightly")
@pytest.mark.alone
@pytest.mark.timeout(1500)
def test_the_demo_improves_on_held_out_tasks(tmp_path: Path, sandboxes: None):
    told = run_demo(Path("examples/demo.toml"), tmp_path / "demo")
    assert told["heldout_before"] <= 0.5
    assert told["heldout_after"] >= 0.65
    assert told["heldout_after"] >= told["heldout_before"] + 0.25
