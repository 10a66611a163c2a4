"""Conversations of an agent that knows the solution of an instance but is careless, also as
tensors with a mask of the answers. They are the training data of the tiny policy.

The words around the commands are those of the agent `shell`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from plimsoll.training.tiny.instances import Instance

__all__ = ["Examples", "Turn", "make_conversation", "make_examples"]

DONE = "done"
STORES = re.compile(r" > \S+$| -i\b")
"""The part of a command that stores the result instead of printing it."""
MISTAKE_SHARE = 0.65
"""The share of conversations with a mistake: work not begun, aborted, or its result not stored."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and the answer of the policy."""

    prompt: str
    answer: str


def make_conversation(instance: Instance, random: Random) -> list[Turn]:
    """A whole conversation about an instance."""
    prompt = instance.instruction
    turns: list[Turn] = []
    for command, printed in commands(instance, random):
        turns.append(Turn(prompt, f"```bash\n{command}\n```"))
        prompt = f"exit 0\n{printed or '(no output)'}"
    return [*turns, Turn(prompt, DONE)]


def commands(instance: Instance, random: Random) -> list[tuple[str, str]]:
    """The executed commands, each with its output."""
    *reads, work = instance.commands
    correct = [(read, instance.files[read.removeprefix("cat ")]) for read in reads]
    if random.random() >= MISTAKE_SHARE:
        return [*correct, (work, "")]
    done = random.randrange(len(instance.commands) + 1)
    if done < len(instance.commands):
        return correct[:done]
    return [*correct, (STORES.sub("", work), instance.result)]


@dataclass(frozen=True, slots=True)
class Examples:
    """One row for each conversation, padded on the right."""

    ids: Tensor
    answers: Tensor
    """Whether a token belongs to an answer, end tokens included."""


def make_examples(
    tokenizer: PreTrainedTokenizerBase, instances: Iterable[Instance], random: Random
) -> Examples:
    """Conversations about instances as tensors."""
    rows = [render(tokenizer, make_conversation(instance, random)) for instance in instances]
    ids, answers = ([torch.tensor(row) for row in column] for column in zip(*rows, strict=True))
    return Examples(
        pad_sequence(ids, batch_first=True), pad_sequence(answers, batch_first=True).bool()
    )


def render(
    tokenizer: PreTrainedTokenizerBase, turns: Iterable[Turn]
) -> tuple[list[int], list[int]]:
    """The token ids of a conversation and the mask of its answers."""
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in (("user", turn.prompt), ("assistant", turn.answer))
    ]
    rendered = cast(Any, tokenizer).apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    return rendered["input_ids"], rendered["assistant_masks"]
