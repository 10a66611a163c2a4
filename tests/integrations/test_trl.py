"""TRL's GRPOTrainer trains on trials in sandboxes, and on nothing else."""

import re
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from datasets import Dataset
from outside_files import read_rows, write_config
from tiny_model import make_model
from trl import GRPOConfig, GRPOTrainer

from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.integrations.trl import TrlRollouts, verdict
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Row
from plimsoll.training import tiny
from plimsoll.workers.worker.trajectory_store import read_stored

STEPS, MEMBERS, TASKS = 2, 4, ("broken", "coin", "touch")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*pin_memory.*:UserWarning", "ignore:You are using 'rollout_func':UserWarning"
)


class RecordingTrainer(GRPOTrainer):
    """Records its training inputs, with its model's log probabilities at that moment."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.seen: list[dict[str, Any]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = super()._generate_and_score_completions(inputs)
        ids = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
        attention = torch.cat([made["prompt_mask"], made["completion_mask"]], dim=1)
        with torch.no_grad():
            now, _, _ = self._get_per_token_logps_and_entropies(
                self.model, ids, attention, made["completion_ids"].size(1)
            )
        rewards = [row["plimsoll_reward"] for row in inputs]
        self.seen.append(made | {"now": now, "rewards": rewards, "inputs": inputs})
        return made


def read_proc(file: Path) -> bytes:
    """A file of a process or a thread in /proc; empty once it has ended."""
    with suppress(OSError):
        return file.read_bytes()
    return b""


def children() -> int:
    """The number of worker processes of this one."""
    lists = map(read_proc, Path("/proc/self/task").glob("*/children"))
    lines = [Path(f"/proc/{child}/cmdline") for text in lists for child in text.decode().split()]
    return sum(b"plimsoll.workers" in read_proc(line) for line in lines)


@dataclass(frozen=True)
class Trained:
    """A finished training."""

    seen: list[dict[str, Any]]
    rows: list[Row]
    logs: list[dict[str, float]]
    workers: int

    def last_of(self, call: int, index: int) -> Row:
        """The last try of a member."""
        own = [row for row in self.rows if row.ticket.startswith(f"eval-{call}-{index}/0.")]
        return max(own, key=lambda row: row.ticket)


def trainer_of(
    tasks: Any, rollouts: Any, model: Path, folder: Path, **more: Any
) -> RecordingTrainer:
    settings = {
        "per_device_train_batch_size": MEMBERS * len(tasks),
        "num_generations": MEMBERS,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "beta": 0.04,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        **more,
    }
    return RecordingTrainer(
        model=str(model),
        args=GRPOConfig(output_dir=str(folder / "trl"), **settings),
        train_dataset=tasks if isinstance(tasks, Dataset) else Dataset.from_list(tasks),
        rollout_func=rollouts,
        reward_funcs=verdict,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny", generation={"max_new_tokens": 12})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, model: Path, home: Path) -> Trained:
    folder = tmp_path_factory.mktemp("trl")
    config = write_config(folder, home, *TASKS, concurrency=4)
    with TrlRollouts(config, model, out=folder / "run") as rollouts:
        trainer = trainer_of(rollouts.dataset(), rollouts, model, folder)
        trainer.train()
        workers = children()
    logs = trainer.state.log_history
    run = RunDirectory(folder / "run")
    rows = [
        msgspec.structs.replace(row, trajectory=run.stored(row.trajectory))
        for row in read_rows(run.path)
    ]
    return Trained(trainer.seen, rows, logs, workers)


def test_trl_trains_on_the_tokens_that_the_policy_sampled(trained: Trained):
    assert len(trained.seen) == STEPS
    for call, made in enumerate(trained.seen, 1):
        for index, task in enumerate(row["prompt"] for row in made["inputs"]):
            if task == "broken":
                continue
            (sample,) = read_stored(trained.last_of(call, index).trajectory).samples()
            prompt = made["prompt_ids"][index][made["prompt_mask"][index].bool()]
            answer = made["completion_ids"][index][made["completion_mask"][index].bool()]
            mask = made["tool_mask"][index][made["completion_mask"][index].bool()]
            whole = [*prompt.tolist(), *answer.tolist()]
            assert whole == list(sample.ids)[: len(whole)]
            assert [0] * len(prompt) + mask.tolist() == list(sample.mask)[: len(whole)]
            assert sum(mask.tolist()) == sum(sample.mask) > 0


def test_each_step_is_generated_with_its_initial_weights(trained: Trained):
    for call, made in enumerate(trained.seen, 1):
        mask = (made["completion_mask"] * made["tool_mask"]).bool()
        apart = (made["sampling_per_token_logps"] - made["now"])[mask].abs()
        assert apart.max() < 1e-3
        for index in range(len(made["inputs"])):
            row = trained.last_of(call, index)
            for sample in read_stored(row.trajectory).samples():
                stamped = {version.number for version in sample.versions if version}
                assert stamped == {call - 1}
    before, after = (made["now"] for made in trained.seen)
    assert before.shape != after.shape or not torch.equal(before, after)


def test_rewards_equal_the_verdicts(trained: Trained):
    graded = 0
    for call, made in enumerate(trained.seen, 1):
        for index, reward in enumerate(made["rewards"]):
            assert reward == trained.last_of(call, index).reward
            graded += reward is not None
    assert graded == STEPS * MEMBERS * 2


def test_a_void_task_has_no_gradient(trained: Trained):
    for call, made in enumerate(trained.seen, 1):
        tasks = [row["prompt"] for row in made["inputs"]]
        void = torch.tensor([task == "broken" for task in tasks])
        trained_on = (made["completion_mask"] * made["tool_mask"]).sum(dim=1)
        assert made["rewards"].count(None) == void.sum() == MEMBERS
        assert (trained_on[void] == 0).all() and (trained_on[~void] > 0).all()
        assert (made["advantages"][void] == 0).all()
        last = [trained.last_of(call, p).ticket for p in range(len(tasks)) if void[p]]
        assert all(ticket.endswith("/0.1") for ticket in last)  # each was retried once
    void_shares = [log["plimsoll/void"] for log in trained.logs if "plimsoll/void" in log]
    assert void_shares == pytest.approx([1 / len(TASKS)] * STEPS)


def test_a_void_member_is_left_out_of_the_baseline_of_its_group(tmp_path, model):
    """Check that TRL leaves None out of the rewards: a void member depends on it."""
    rewards = [1.0, None, 0.0, 1.0]

    def rows(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        columns = {"plimsoll_reward": rewards, "plimsoll_left_out": [0] * MEMBERS}
        tokens = {"prompt_ids": [[5]] * MEMBERS, "completion_ids": [[6]] * MEMBERS}
        masks = [[int(reward is not None)] for reward in rewards]
        return tokens | columns | {"logprobs": [[0.0]] * MEMBERS, "env_mask": masks}

    trainer = trainer_of([{"prompt": "coin"}], rows, model, tmp_path, max_steps=1)
    trainer.train()
    graded = torch.tensor([1.0, 0.0, 1.0])
    advantages = (graded - graded.mean()) / (graded.std() + 1e-4)
    assert trainer.seen[0]["advantages"].tolist() == pytest.approx(
        [advantages[0].item(), 0.0, advantages[1].item(), advantages[2].item()]
    )


def test_the_generation_config_of_the_model_does_not_change_the_sampling(tmp_path, home):
    cut = {"temperature": 0.3, "top_k": 1, "top_p": 0.1}
    generation = {**cut, "repetition_penalty": 1.5, "max_new_tokens": 12}
    model = make_model(tmp_path / "model", generation=generation)
    config = write_config(tmp_path, home, "coin", concurrency=4)
    with TrlRollouts(config, model, out=tmp_path / "run") as rollouts:
        trainer = trainer_of(rollouts.dataset(), rollouts, model, tmp_path, max_steps=1)
        trainer.train()
    (made,) = trainer.seen
    mask = (made["completion_mask"] * made["tool_mask"]).bool()
    apart = (made["sampling_per_token_logps"] - made["now"])[mask].abs()
    assert apart.max() < 1e-3
    # With the folder's top_k every answer would be the most likely one.
    answers = {tuple(row[:8].tolist()) for row in made["completion_ids"]}
    assert len(answers) > 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.7}, "GRPOConfig has temperature=0.7, and"),
        ({"top_k": 20, "top_p": 0.9}, "GRPOConfig has top_p=0.9, top_k=20, and"),
        ({"repetition_penalty": 1.1, "min_p": 0.1}, "min_p=0.1, repetition_penalty=1.1"),
    ],
)
def test_unsupported_sampling_settings_of_trl_are_refused(
    tmp_path, home, model, settings, expected
):
    rollouts = TrlRollouts(write_config(tmp_path, home, "coin"), model)
    args = GRPOConfig(output_dir=str(tmp_path / "trl"), use_cpu=True, bf16=False, **settings)
    with pytest.raises(UsageError, match=re.escape(expected)):
        rollouts(["coin"], SimpleNamespace(args=args))


def test_a_config_with_sampling_by_the_agent_is_refused(tmp_path, home, model):
    config = write_config(tmp_path, home, "coin")
    config.write_text(config.read_text() + '[policy]\nsampling = "asked"\n')
    with pytest.raises(UsageError, match=r'sampling is "asked", .*leave it out of the config'):
        TrlRollouts(config, model)


def test_nothing_is_left_running_after_the_training(trained: Trained):
    assert "plimsoll-trl" not in {thread.name for thread in threading.enumerate()}
    assert trained.workers > 0
    assert children() == 0


def test_a_step_without_graded_trials_stops_the_training(tmp_path, home, model):
    config = write_config(tmp_path, home, "broken")
    with (
        TrlRollouts(config, model, out=tmp_path / "run") as rollouts,
        pytest.raises(TrainingError, match=r"nothing was graded: broken is void \(grader: "),
    ):
        trainer_of(rollouts.dataset(), rollouts, model, tmp_path).train()


def test_a_trl_version_that_counts_voids_as_0_is_refused(tmp_path, monkeypatch, model):
    monkeypatch.setattr(metadata, "version", lambda _: "1.0.0")
    with pytest.raises(UsageError, match=r"TRL 1\.0\.0 is too old .*: 1\.16 is needed"):
        TrlRollouts(tmp_path / "night.toml", model)


def test_without_trl_the_message_names_the_extra(tmp_path, monkeypatch, model):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UsageError, match="TRL is not installed: pip install"):
        TrlRollouts(tmp_path / "night.toml", model)


@pytest.mark.slow
def test_the_example_trains(tmp_path: Path):
    example = Path(__file__).parents[2] / "examples/integrations/trl_grpo.py"
    ended = subprocess.run(
        [sys.executable, str(example), str(tiny.folder()), "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "runs").glob("trl-*")
    assert f"see: {run.relative_to(tmp_path)}" in ended.stdout
    assert [row.verdict for row in read_rows(run)] == ["graded"] * 8


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), [([], "MODEL [STEPS]"), (["nowhere"], "nowhere")])
def test_the_example_reports_an_invalid_model(tmp_path: Path, words: list[str], expected: str):
    example = Path(__file__).parents[2] / "examples/integrations/trl_grpo.py"
    ended = subprocess.run(
        [sys.executable, str(example), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr
