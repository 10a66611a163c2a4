"""Configs and a tiny model for trainings in tests. The model chooses between two commands."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["GRADE", "final_weights", "lines", "make_model", "write_training"]

END, START = "<|end|>", "<|start|>"
GOOD, BAD = (f"```bash\necho {word} > /tmp/answer\n```" for word in ("good", "bad"))
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] != 'system' %}"
    "{{ '<|start|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>' }}{% endif %}"
)
GRADE = """#!/bin/bash
read -r word 2>/dev/null < /tmp/answer
if [ "$word" = good ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
"""Gives 1 for the answer `good`, and 0 for any other."""


def make_model(folder: Path, *, hidden: int = 16, seed: int = 0) -> Path:
    """Write a model that generates a good command, a bad one, or none."""
    tokenizer = Tokenizer(models.BPE(vocab={"<unk>": 0}, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=END, eos_token=END)
    made.add_special_tokens({"additional_special_tokens": [START]})
    made.add_tokens([GOOD, BAD])
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    end: Any = made.convert_tokens_to_ids(END)
    config = LlamaConfig(
        vocab_size=len(made),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=end, pad_token_id=end, do_sample=True, max_new_tokens=2
    )
    model.save_pretrained(folder)
    return folder


def write_training(folder: Path, *, training: object = None, **run: object) -> Path:
    """Write a config that trains this model on the tasks in `tasks`, with sandboxes in `home`."""
    if not (folder / "model").exists():
        make_model(folder / "model")
    tables: dict[str, dict[str, object]] = {
        "run": {"tasks": "tasks", "group_size": 4, "batch_groups": 2, "steps": 3, **run},
        "policy": {"turns": 1},
        "workers": {"concurrency": 2, "grace_seconds": 5.0},
        "local": {"home": str(folder / "home")},
        "training": {
            "policy": "torch",
            "model": "model",
            "mode": "sync",
            "learning_rate": 0.01,
            "checkpoint_every": 1,
            **(training if isinstance(training, dict) else {}),
        },
    }
    file = folder / "night.toml"
    file.write_text("\n".join(_table(name, values) for name, values in tables.items()))
    return file


def _table(name: str, values: dict[str, object]) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def final_weights(run: Path) -> dict[str, Tensor]:
    """The weights of the run's last checkpoint."""
    last = max((run / "checkpoints").glob("*.json"), key=lambda path: path.stem.split("-")[1])
    return load_file(last.with_suffix("") / "model.safetensors")
