"""Draws the next token of each row of a batch.

What a row draws depends on its own seed and position alone, never on who else is in the batch:
its chance is a hash of both. So nothing is kept between tokens, and rows can be drawn at once.

What a model's folder says of how it is sampled, as vLLM reads it.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plimsoll.core.errors import UsageError

__all__ = [
    "BatchSampling",
    "GenerationParams",
    "ModelDefaults",
    "SampledTokens",
    "batch_sampling",
    "read_defaults",
    "row_seed",
    "sample",
]


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How a row is sampled."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens of a batch, and their log probabilities under the model as it is: before
    temperature, top_p and top_k."""

    tokens: Tensor
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class BatchSampling:
    """How the rows of a batch are sampled, as tensors. What no row asks for is None."""

    seeds: Tensor
    temperature: Tensor | None
    greedy: Tensor | None
    top_p: Tensor | None
    top_k: Tensor | None


def row_seed(seed: int, version: int, prompt: Sequence[int], turn: int) -> int:
    """The seed of the answer that is given the `turn`-th time that a prompt is asked."""
    head = f"{seed} {version} {turn} ".encode()
    digest = hashlib.blake2b(head + array("q", prompt).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def batch_sampling(
    tastes: Sequence[GenerationParams], seeds: Sequence[int], device: torch.device
) -> BatchSampling:
    def tensor(values: list[float]) -> Tensor:
        return torch.tensor(values, device=device).unsqueeze(1)

    heat = [taste.temperature for taste in tastes]
    nucleus = [taste.top_p for taste in tastes]
    most = [taste.top_k for taste in tastes]
    cold = [value == 0 for value in heat]
    return BatchSampling(
        seeds=torch.tensor(list(seeds), dtype=torch.int64, device=device),
        temperature=tensor([value or 1.0 for value in heat]) if set(heat) != {1.0} else None,
        greedy=torch.tensor(cold, device=device) if any(cold) else None,
        top_p=tensor(nucleus) if min(nucleus) < 1 else None,
        top_k=torch.tensor(most, device=device).unsqueeze(1) if max(most) > 0 else None,
    )


def sample(logits: Tensor, how: BatchSampling, positions: Tensor) -> SampledTokens:
    """One token for each row of logits, at its position."""
    logits = logits.float()
    scaled = logits if how.temperature is None else logits / how.temperature
    if how.top_k is not None:
        scaled = _keep_best(scaled, how.top_k)
    if how.top_p is not None:
        scaled = _keep_nucleus(scaled, how.top_p)
    # In double precision: of a large vocabulary many tokens are rarer than a float's last bit.
    rising = torch.softmax(scaled, dim=-1, dtype=torch.float64).cumsum(dim=-1)
    chance = _uniform(how.seeds, positions).unsqueeze(1) * rising[:, -1:]
    tokens = torch.searchsorted(rising, chance, right=True)
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    if how.greedy is not None:
        tokens = torch.where(how.greedy.unsqueeze(1), logits.argmax(dim=-1, keepdim=True), tokens)
    # Of logits that are not finite nor is this, whichever token was drawn.
    logprobs = logits.gather(1, tokens).squeeze(1) - logits.logsumexp(dim=-1)
    return SampledTokens(tokens.squeeze(1), logprobs)


def _keep_best(logits: Tensor, top_k: Tensor) -> Tensor:
    size = logits.shape[-1]
    wanted = torch.where(top_k > 0, top_k.clamp(max=size), size)
    best = logits.topk(int(wanted.max()), dim=-1).values
    return logits.masked_fill(logits < best.gather(1, wanted - 1), float("-inf"))


def _keep_nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """The likeliest tokens, up to the one that makes their sum reach top_p."""
    ordered, order = logits.sort(dim=-1, descending=True)
    shares = torch.softmax(ordered, dim=-1)
    before = shares.cumsum(dim=-1) - shares
    ordered = ordered.masked_fill((before >= top_p) & (top_p < 1), float("-inf"))
    return torch.empty_like(ordered).scatter_(1, order, ordered)


def _uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Numbers in [0, 1), by the mixing steps of SplitMix64; integers wrap around as there."""
    mixed = seeds + positions * -0x61C8864680B583EB
    mixed = (mixed ^ _shifted(mixed, 30)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ _shifted(mixed, 27)) * -0x6B2FB644ECCEEE15
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 11).double() * 2.0**-53


def _shifted(values: Tensor, by: int) -> Tensor:
    """To the right, with zeros: torch's own keeps the sign."""
    return (values >> by) & ((1 << (64 - by)) - 1)


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What holds where a request does not say otherwise."""

    context: int
    """Tokens that a prompt and its answer may have together."""
    vocabulary: int
    ends: frozenset[int]
    """Tokens that end an answer."""
    taste: GenerationParams
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


def read_defaults(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> ModelDefaults:
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
    return ModelDefaults(
        context=context,
        vocabulary=config.vocab_size,
        ends=frozenset(end for end in ends if end is not None),
        taste=GenerationParams(
            temperature=1.0 if generation.temperature is None else generation.temperature,
            top_p=generation.top_p or 1.0,
            top_k=generation.top_k or 0,
        ),
        limit=generation.max_new_tokens,
    )
