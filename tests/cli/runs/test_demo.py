"""The demo is run as a person runs it, and learns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.alone
@pytest.mark.timeout(1500)
def test_the_demo_gets_better_at_tasks_that_it_has_not_seen(tmp_path: Path, sandboxes: None):
    demo = [sys.executable, "-m", "plimsoll", "run", "examples/demo.toml"]
    ended = subprocess.run(
        [*demo, "--json", "--out", str(tmp_path / "demo")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["heldout_before"] <= 0.5
    assert told["heldout_after"] >= 0.65
    assert told["heldout_after"] >= told["heldout_before"] + 0.25
    assert told["max_age"] <= told["eta"]
    assert told["quarantined"] == ["needs-internet"]
    assert "example.invalid" in told["out"]["needs-internet"]
    assert told["graded"] == told["trials"] and told["void"] == {}
    assert told["problems"] == []
    picture = tmp_path / "demo/training.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and str(picture) in ended.stderr
