"""The shipped weights equal the output of the recipe."""

from pathlib import Path
from random import Random

import pytest
import torch

from parts import NIGHTLY
from plimsoll.training import tiny
from plimsoll.training.models import load_model, load_tokenizer
from plimsoll.training.tiny import recipe
from plimsoll.training.tiny.conversations import make_examples
from plimsoll.training.tiny.instances import demo_tasks, other_instances

LARGEST = 2_000_000


def greedy(folder: Path) -> list[list[int]]:
    """The answers to the held-out tasks at temperature 0."""
    model, tokenizer = load_model(folder, device="cpu"), load_tokenizer(folder)
    answers = []
    for task in demo_tasks().held_out:
        messages = [{"role": "user", "content": task.instruction}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, return_tensors="pt"
        )
        output = model.generate(prompt, do_sample=False, max_new_tokens=40)
        answers.append(output[0, prompt.shape[1] :].tolist())
    return answers


def loss(folder: Path) -> float:
    batch = make_examples(load_tokenizer(folder), other_instances(Random(9), 64), Random(9))
    with torch.no_grad():
        return recipe.loss_of(load_model(folder, device="cpu"), batch).item()


def test_the_shipped_files_are_small():
    assert sum(path.stat().st_size for path in tiny.folder().iterdir()) < LARGEST


def test_the_recipe_writes_the_shipped_files_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recipe, "BATCHES", 10)
    made = tmp_path / "tiny"
    losses = recipe.make(made, say=print)
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert {path.name for path in made.iterdir()} == {path.name for path in tiny.folder().iterdir()}
    assert_same_texts(made)


@pytest.mark.nightly
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes: make test-nightly")
@pytest.mark.timeout(1200)
def test_the_recipe_reproduces_the_shipped_policy(tmp_path: Path):
    made = tmp_path / "tiny"
    losses = recipe.make(made, say=print)
    assert losses[-1] < losses[0] / 10
    assert_same_texts(made)
    # Another machine rounds differently, so the weights differ, but not the abilities.
    assert loss(made) == pytest.approx(loss(tiny.folder()), rel=0.1)
    pairs = list(zip(greedy(made), greedy(tiny.folder()), strict=True))
    assert sum(one == other for one, other in pairs) >= 0.7 * len(pairs)


def assert_same_texts(made: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja", "config.json", "generation_config.json"):
        assert (made / name).read_text() == (tiny.folder() / name).read_text(), name
