"""The learner with invalid samples, non-finite numbers and too little memory."""

import math
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import flat, item, items, make_learner, save
from tiny_model import make_model
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import LlamaModel

from plimsoll.core.errors import TrainingError, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def nan_samples() -> list:
    first, *others = items()
    return [replace(first, logprobs=array("f", [math.nan] * len(first.ids))), *others]


def huge_samples() -> list:
    """Samples whose loss is finite, and the square of its gradient is not."""
    return [replace(each, advantage=each.advantage * 1e30) for each in items()]


@pytest.mark.parametrize(
    ("samples", "reason"),
    [(nan_samples(), "loss"), (huge_samples(), "gradient")],
    ids=["loss", "gradient"],
)
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_non_finite_step_is_skipped_and_counted(
    folder: Path, samples: list, reason: str, algorithm: str
):
    if (reason, algorithm) == ("gradient", "ppo"):
        samples = [replace(each, reward=each.reward * 1e30) for each in items()]
    learner, undisturbed = (
        make_learner(folder, algorithm=algorithm),
        make_learner(folder, algorithm=algorithm),
    )
    for each in (learner, undisturbed):
        each.step(items(seed=1))
    before = flat(learner)
    for count in (1, 2):
        report = learner.step(samples)
        assert report.skipped and (algorithm == "ppo" or reason in report.skipped)
        assert learner.bad_steps == count
        assert torch.equal(before, flat(learner))
    # The moments are unchanged, too: the next step equals that of a learner without bad steps.
    learner.step(items(seed=2))
    undisturbed.step(items(seed=2))
    assert torch.equal(flat(learner), flat(undisturbed))
    assert learner.bad_steps == 0


def test_a_step_is_bad_only_if_no_update_changed_the_weights(folder: Path):
    learner = make_learner(folder, updates=2)
    before = flat(learner)
    report = learner.step(nan_samples())
    assert (report.left_out, report.skipped, learner.bad_steps) == (1, "", 0)
    assert not torch.equal(before, flat(learner))
    before = flat(learner)
    bad = nan_samples()[0]
    report = learner.step([bad, replace(bad, ticket="another.0")])
    assert (report.left_out, report.skipped, learner.bad_steps) == (2, "the loss is not finite", 1)
    assert torch.equal(before, flat(learner))


def test_a_step_without_advantages_does_not_reset_the_count_of_bad_steps(folder: Path):
    learner = make_learner(folder)
    learner.step(nan_samples())
    learner.step([])
    assert learner.bad_steps == 1


def test_an_unknown_token_id_is_reported_with_the_rollout_and_the_tokenizer(folder: Path):
    for wrong in (100_000, -1):
        bad = item([1, wrong, 2], [0, 1, 1], ticket="fix-add.3")
        with pytest.raises(
            TrainingError, match=rf"fix-add\.3 has token id {wrong}.*tokenizer.*new run"
        ):
            make_learner(folder).step([*items(), bad])


def test_lists_of_different_lengths_are_reported_with_the_rollout(folder: Path):
    bad = replace(item([1, 2, 3], [0, 1, 1], ticket="fix-add.3"), mask=bytearray([0, 1]))
    with pytest.raises(TrainingError, match=r"fix-add\.3 has 3 token ids, 2 mask entries"):
        make_learner(folder).step([bad])


def test_a_non_finite_advantage_is_reported_with_the_rollout(folder: Path):
    with pytest.raises(TrainingError, match=r"fix-add\.3 has .*advantage nan"):
        make_learner(folder).step([item([1, 2], [0, 1], advantage=math.nan, ticket="fix-add.3")])


def test_a_sample_whose_only_trained_token_is_its_first_is_left_out(folder: Path):
    report = make_learner(folder).step([*items(2), item([1, 2, 3], [1, 0, 0])])
    assert report.samples == 2 and report.loss is not None


def test_a_missing_model_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="no folder"):
        make_learner(tmp_path / "none")


def test_a_missing_reference_is_a_usage_error(folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="no folder"):
        make_learner(folder, kl=0.1, reference=str(tmp_path / "none"))


@contextmanager
def limited_memory(
    tokens: int, *, error: type[Exception] = torch.OutOfMemoryError
) -> Iterator[None]:
    """Let each forward pass of more than `tokens` tokens fail for lack of memory."""

    def fail(module: nn.Module, given: object) -> None:
        if isinstance(module, nn.Embedding) and isinstance(given, tuple):
            (ids,) = given
            if ids.numel() > tokens:
                raise error("DefaultCPUAllocator: can't allocate memory")

    hook = register_module_forward_pre_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
@pytest.mark.parametrize("values", [{}, {"updates": 2}, {"algorithm": "ppo"}], ids=str)
def test_after_out_of_memory_smaller_micro_batches_give_the_same_step(
    folder: Path, values: dict, error: type[Exception]
):
    expected = make_learner(folder, **values).step(items())
    learner = make_learner(folder, **values)
    with limited_memory(60, error=error):
        report = learner.step(items())
        assert learner.micro_tokens <= 60
        learner.step(items())
    assert report.loss == pytest.approx(expected.loss, abs=1e-6)
    assert report.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    assert report.micro_batches > expected.micro_batches


@pytest.mark.parametrize("values", [{}, {"algorithm": "ppo"}], ids=str)
def test_samples_trained_before_out_of_memory_are_not_trained_twice(folder: Path, values: dict):
    expected = make_learner(folder, micro_tokens=100, **values).step(items())
    learner = make_learner(folder, micro_tokens=100, **values)
    calls = iter(range(1, 1000))

    def fail(module: nn.Module, given: object) -> None:
        if isinstance(module, nn.Embedding) and next(calls) == expected.micro_batches:
            raise torch.OutOfMemoryError

    hook = register_module_forward_pre_hook(fail)
    try:
        report = learner.step(items())
    finally:
        hook.remove()
    assert learner.micro_tokens < 100
    assert report.loss == pytest.approx(expected.loss, abs=1e-6)
    assert report.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)


def test_a_sample_too_large_for_memory_ends_training_with_a_remedy(folder: Path):
    learner = make_learner(folder)
    with limited_memory(10), pytest.raises(TrainingError, match=r"a sample of .* does not fit"):
        learner.step(items())


def test_a_failed_step_does_not_advance_the_schedule(folder: Path):
    learner, undisturbed = (make_learner(folder, schedule="linear") for _ in range(2))
    with limited_memory(10), pytest.raises(TrainingError):
        learner.step(items())
    assert learner.step(items()).learning_rate == undisturbed.step(items()).learning_rate


def test_an_optimizer_too_large_for_memory_is_reported(folder: Path):
    def fail(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    learner = make_learner(folder)
    hook = register_optimizer_step_pre_hook(fail)
    try:
        with pytest.raises(TrainingError, match=r"out of memory: the optimizer .* torchrun"):
            learner.step(items())
    finally:
        hook.remove()


def test_other_errors_are_not_reported_as_out_of_memory(folder: Path):
    def fail(module: nn.Module, given: object) -> None:
        if isinstance(module, LlamaModel):
            raise RuntimeError("something else")

    learner = make_learner(folder)
    hook = register_module_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="something else"):
            learner.step(items())
    finally:
        hook.remove()


def fail_for_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    "where",
    [
        "plimsoll.training.learner.learner.make_inputs",
        "plimsoll.training.learner.learner.compute_targets",
        "torch.nn.utils.clip_grad_norm_",
        "plimsoll.training.learner.learner.Learner._report",
    ],
)
def test_out_of_memory_anywhere_in_a_step_is_reported_with_a_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    learner = make_learner(folder)
    with monkeypatch.context() as patched:
        patched.setattr(where, fail_for_memory)
        with pytest.raises(TrainingError, match=r"out of memory in a step of 8 .*recompute"):
            learner.step(items())
    assert all(parameter.grad is None for parameter in learner._networks.policy.model.parameters())  # pyright: ignore


def second_group_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory run out after AdamW has changed the weights of its first group."""
    module: Any = import_module("torch.optim.adam")
    calls, real = iter(range(1, 100)), module.adam

    def adam(*args: Any, **named: Any) -> None:
        if next(calls) == 2:
            fail_for_memory()
        real(*args, **named)

    monkeypatch.setattr(module, "adam", adam)


def test_weights_of_a_partial_step_are_not_marked_complete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learner = make_learner(folder)
    learner.step(items(seed=1))
    save(learner, tmp_path / "kept")
    before = flat(learner)
    with monkeypatch.context() as patched:
        second_group_fails(patched)
        with pytest.raises(TrainingError, match="out of memory: the optimizer"):
            learner.step(items(seed=2))
    assert not torch.equal(before, flat(learner)), "no weight changed"
    assert not learner.is_whole
    learner.step(items(seed=3))
    assert not learner.is_whole, "another step does not complete the weights"
    learner.load(tmp_path / "kept")
    assert learner.is_whole


@pytest.mark.parametrize(("update", "is_whole"), [(1, True), (2, False)])
def test_a_failed_step_without_an_update_leaves_complete_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, update: int, is_whole: bool
):
    learner, undisturbed = (make_learner(folder, updates=2) for _ in range(2))
    calls, real = iter(range(1, 100)), nn.utils.clip_grad_norm_

    def clip(*args: Any, **named: Any) -> Tensor:
        if next(calls) == update:
            fail_for_memory()
        return real(*args, **named)

    with monkeypatch.context() as patched:
        patched.setattr("torch.nn.utils.clip_grad_norm_", clip)
        with pytest.raises(TrainingError):
            learner.step(items())
    assert learner.is_whole == is_whole
    if is_whole:  # the random state is unchanged, too
        for each in (learner, undisturbed):
            each.step(items())
        assert torch.equal(flat(learner), flat(undisturbed))
