"""What a model's folder says of how it is sampled, as vLLM reads it."""

from dataclasses import dataclass
from typing import Protocol, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plimsoll.core.errors import UsageError
from plimsoll.training.policies.sampling import Taste

__all__ = ["Defaults", "read_defaults"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request does not say otherwise."""

    context: int
    """Tokens that a prompt and its answer may have together."""
    vocabulary: int
    ends: frozenset[int]
    """Tokens that end an answer."""
    taste: Taste
    limit: int | None
    """Tokens of an answer."""


class _Generation(Protocol):
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_new_tokens: int | None
    eos_token_id: int | list[int] | None


class _Text(Protocol):
    max_position_embeddings: int | None
    vocab_size: int


class _Config(Protocol):
    def get_text_config(self) -> _Text: ...


class _Ended(Protocol):
    eos_token_id: int | None


def read_defaults(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Defaults:
    """From generation_config.json, config.json and the tokenizer."""
    config = cast(_Config, model.config).get_text_config()
    generation = cast(_Generation, model.generation_config)
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise UsageError(
            "the model's config.json does not say how long its context is"
            " (max_position_embeddings), so it cannot be served"
        )
    told = generation.eos_token_id
    ends = {*(told if isinstance(told, list) else [told]), cast(_Ended, tokenizer).eos_token_id}
    return Defaults(
        context=context,
        vocabulary=config.vocab_size,
        ends=frozenset(end for end in ends if end is not None),
        taste=Taste(
            temperature=1.0 if generation.temperature is None else generation.temperature,
            top_p=generation.top_p or 1.0,
            top_k=generation.top_k or 0,
        ),
        limit=generation.max_new_tokens,
    )
