"""Conversations as tensors, with a mask of what the policy says in them."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from plimsoll.training.tiny.kinds import Instance
from plimsoll.training.tiny.talks import Turn, talk

__all__ = ["Examples", "examples"]


@dataclass(frozen=True, slots=True)
class Examples:
    """A row for each conversation, padded to the right."""

    ids: Tensor
    answers: Tensor
    """Whether a token is the policy's own, the ends of its answers included."""


def examples(
    tokenizer: PreTrainedTokenizerBase, instances: Iterable[Instance], random: Random
) -> Examples:
    """What is said about them."""
    rows = [render(tokenizer, talk(instance, random)) for instance in instances]
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
