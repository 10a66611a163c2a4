"""What somebody says who knows the solution of an instance but is careless, turn by turn: what
the policy learns from first.

The words around the commands are those of the agent `shell`.

Conversations as tensors, with a mask of what the policy says in them.
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
KEEPS = re.compile(r" > \S+$| -i\b")
"""What makes a command keep its result instead of printing it."""
SLIPS = 0.65
"""How often the work is not done: never begun, broken off, or its result not kept."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy is told, and what it answers."""

    told: str
    answer: str


def make_conversation(instance: Instance, random: Random) -> list[Turn]:
    """The whole conversation."""
    told = instance.instruction
    turns: list[Turn] = []
    for command, printed in commands(instance, random):
        turns.append(Turn(told, f"```bash\n{command}\n```"))
        told = f"exit 0\n{printed or '(no output)'}"
    return [*turns, Turn(told, DONE)]


def commands(instance: Instance, random: Random) -> list[tuple[str, str]]:
    """The commands that are run, each with what it prints."""
    *looks, work = instance.commands
    right = [(look, instance.files[look.removeprefix("cat ")]) for look in looks]
    if random.random() >= SLIPS:
        return [*right, (work, "")]
    done = random.randrange(len(instance.commands) + 1)
    if done < len(instance.commands):
        return right[:done]
    return [*right, (KEEPS.sub("", work), instance.result)]


@dataclass(frozen=True, slots=True)
class Examples:
    """A row for each conversation, padded to the right."""

    ids: Tensor
    answers: Tensor
    """Whether a token is the policy's own, the ends of its answers included."""


def make_examples(
    tokenizer: PreTrainedTokenizerBase, instances: Iterable[Instance], random: Random
) -> Examples:
    """What is said about them."""
    rows = [render(tokenizer, make_conversation(instance, random)) for instance in instances]
    ids, answers = ([torch.tensor(row) for row in column] for column in zip(*rows, strict=True))
    return Examples(
        pad_sequence(ids, batch_first=True), pad_sequence(answers, batch_first=True).bool()
    )


def render(
    tokenizer: PreTrainedTokenizerBase, turns: Iterable[Turn]
) -> tuple[list[int], list[int]]:
    """The ids of a conversation, and its mask."""
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in (("user", turn.told), ("assistant", turn.answer))
    ]
    rendered = cast(Any, tokenizer).apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    return rendered["input_ids"], rendered["assistant_masks"]
