"""The configs of the examples and of the docs can be loaded."""

import re
from pathlib import Path

import pytest

from plimsoll.config.file import load_config
from plimsoll.runs.plan import Plan
from plimsoll.workers.worker.policy_service import ServedPolicy

ROOT = Path(__file__).parents[2]
SNIPPETS = [
    pytest.param(text, id=f"{name}-{number}")
    for name in ("docker", "pools", "runs", "training", "workers")
    for number, text in enumerate(
        re.findall(r"^```toml\n(.*?)^```", (ROOT / f"docs/{name}.md").read_text(), re.M | re.S)
    )
]


@pytest.mark.parametrize("text", SNIPPETS)
def test_configs_in_the_docs_can_be_loaded(text: str, tmp_path: Path):
    (tmp_path / "night.toml").write_text(text)
    load_config(tmp_path / "night.toml")


def test_the_docs_contain_configs():
    assert len(SNIPPETS) >= 7


@pytest.mark.parametrize("name", ["demo", "qwen", "rollout"])
def test_example_configs_make_a_plan(name: str):
    config = load_config(ROOT / f"examples/{name}.toml")
    serves = config.training.policy == "tiny"
    plan = Plan.make(config, ServedPolicy(("http://127.0.0.1:9/v1",)) if serves else None)
    assert len(plan.tasks) >= 20
    assert bool(plan.held_out.tasks) == (config.training.policy is not None)


def test_configs_for_other_trainers_name_tasks():
    config = load_config(ROOT / "examples/integrations/tasks.toml")
    assert Path(config.run.tasks or "").is_dir()
