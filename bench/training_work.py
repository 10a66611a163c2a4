"""The workload of `bench_training.py`: tasks with straggling environments, and a model.

Trials are complete: a sandbox, an agent, commands, tests. Two things are artificial:

- A test sleeps before it grades, for a random time: lognormal, and 50 medians in one of twenty
  trials.
- Its reward is a coin toss, so that every group has something to learn from, at every step and on
  every side.

The instruction of a task follows a long context, as in conversations of agents: prompts are ten
times as long as answers.
"""

import math
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from plimsoll.training import tiny
from plimsoll.training.models import load_model, load_tokenizer
from plimsoll.training.tiny.instances import demo_tasks, other_instances
from plimsoll.training.tiny.task_folders import files_of

__all__ = ["SLOW", "durations", "make_model", "make_tasks"]

SLOW = 50.0
"""Duration of a straggler, in medians."""
DRAWS = 20
"""One trial in this many is a straggler."""
SPREAD = 0.5
"""Standard deviation of the logarithm of the other durations."""
BEFORE = 12
"""Number of other instructions before the one to follow."""

TEST = """\
#!/bin/bash
times=({times})
sleep "${{times[RANDOM % {draws}]}}"
echo "ok: the reward is a coin"
echo $((RANDOM % 2)) >/logs/verifier/reward.txt
"""


def durations(median: float) -> list[float]:
    """Durations in seconds, all equally likely."""
    distribution = NormalDist(math.log(median), SPREAD)
    quantiles = [distribution.inv_cdf((index + 0.5) / (DRAWS - 1)) for index in range(DRAWS - 1)]
    return [round(math.exp(each), 3) for each in quantiles] + [SLOW * median]


def make_tasks(folder: Path, median: float) -> None:
    """Write the demo's tasks, with tests that sleep."""
    times = " ".join(f"{seconds:g}" for seconds in durations(median))
    test = TEST.format(times=times, draws=DRAWS)
    before = " ".join(other.instruction for other in other_instances(Random(0), BEFORE))
    for instance in demo_tasks().training:
        files = {**files_of(instance), "tests/test.sh": test}
        files["instruction.md"] = f"{before}\n{files['instruction.md']}"
        # A sleeping test must not time out, however busy the machine is.
        files["task.toml"] = files["task.toml"].replace("timeout_sec = 30", "timeout_sec = 300")
        for path, text in files.items():
            file = folder / instance.name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def make_model(folder: Path, width: int) -> int:
    """Write the tiny policy with wider layers and equal outputs. Returns its number of parameters.

    The wider it is, the longer an update takes, relative to the fixed cost of a trial.
    """
    disable_progress_bar()
    small = cast(LlamaForCausalLM, load_model(tiny.folder(), device="cpu", dtype="float32"))
    settings = {**small.config.to_dict(), "intermediate_size": width, "dtype": "float32"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = LlamaForCausalLM(LlamaConfig(**settings))
    state = wide.state_dict()
    with torch.no_grad():
        for name, tensor in small.state_dict().items():
            if name.endswith("down_proj.weight"):
                state[name].zero_()  # the added units have no effect at first
            state[name][tuple(slice(size) for size in tensor.shape)] = tensor
    wide.generation_config = small.generation_config
    wide.save_pretrained(folder)
    load_tokenizer(tiny.folder()).save_pretrained(folder)
    return wide.num_parameters()
