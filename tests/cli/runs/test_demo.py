"""The demo: a short one completes, and the whole one improves on held-out tasks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parts import NIGHTLY

ROOT = Path(__file__).parents[3]
FEWER = {"steps = 20": "steps = 2", "batch_groups = 8": "batch_groups = 3", "attempts = 4": ""}
"""The replacements in the config for a short demo."""


def run_demo(config: Path, out: Path) -> dict[str, Any]:
    """Run a demo, and check the results that are the same for any number of steps."""
    ended = subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", str(config), "--json", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["max_age"] <= report["eta"]
    assert report["quarantined"] == ["needs-internet"]
    assert "example.invalid" in report["out"]["needs-internet"]
    assert report["graded"] == report["trials"] and report["void"] == {}
    assert report["problems"] == []
    picture = out / "training.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and str(picture) in ended.stderr
    return report


@pytest.mark.slow
def test_the_demo_trains_on_its_tasks_and_measures_held_out_ones(tmp_path: Path, sandboxes: None):
    text = (ROOT / "examples/demo.toml").read_text()
    for value, less in FEWER.items():
        assert value in text
        text = text.replace(value, less)
    config = tmp_path / "demo.toml"
    config.write_text(text.replace('"demo/', f'"{ROOT}/examples/demo/'))
    report = run_demo(config, tmp_path / "demo")
    assert report["steps"] == 2
    assert 0 <= report["heldout_before"] <= 1
    assert 0 <= report["heldout_after"] <= 1


@pytest.mark.nightly
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes: make test-nightly")
@pytest.mark.alone
@pytest.mark.timeout(1500)
def test_the_demo_improves_on_held_out_tasks(tmp_path: Path, sandboxes: None):
    report = run_demo(Path("examples/demo.toml"), tmp_path / "demo")
    assert report["heldout_before"] <= 0.5
    assert report["heldout_after"] >= 0.65
    assert report["heldout_after"] >= report["heldout_before"] + 0.25
