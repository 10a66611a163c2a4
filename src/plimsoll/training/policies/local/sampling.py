"""Sampling of the next token for each row of a batch, and the defaults of a model's folder.

The token of a row depends only on the row's seed and position, never on other rows: its random
number is a hash of both. So there is no state between tokens, and all rows are sampled at once.
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
    """The sampling parameters of a row."""

    temperature: float = 1.0
    """0: the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens of a batch and their log probabilities under the unmodified model: before
    temperature, top_p and top_k."""

    tokens: Tensor
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class BatchSampling:
    """The sampling parameters of a batch as tensors. A parameter that no row uses is None."""

    seeds: Tensor
    temperature: Tensor | None
    greedy: Tensor | None
    top_p: Tensor | None
    top_k: Tensor | None


def row_seed(seed: int, version: int, prompt: Sequence[int], turn: int) -> int:
    """The seed of the answer to the `turn`-th request of a prompt."""
    head = f"{seed} {version} {turn} ".encode()
    digest = hashlib.blake2b(head + array("q", prompt).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def batch_sampling(
    params: Sequence[GenerationParams], seeds: Sequence[int], device: torch.device
) -> BatchSampling:
    def tensor(values: list[float]) -> Tensor:
        return torch.tensor(values, device=device).unsqueeze(1)

    temperatures = [sampling.temperature for sampling in params]
    top_p = [sampling.top_p for sampling in params]
    top_k = [sampling.top_k for sampling in params]
    is_greedy = [value == 0 for value in temperatures]
    return BatchSampling(
        seeds=torch.tensor(list(seeds), dtype=torch.int64, device=device),
        temperature=tensor([value or 1.0 for value in temperatures])
        if set(temperatures) != {1.0}
        else None,
        greedy=torch.tensor(is_greedy, device=device) if any(is_greedy) else None,
        top_p=tensor(top_p) if min(top_p) < 1 else None,
        top_k=torch.tensor(top_k, device=device).unsqueeze(1) if max(top_k) > 0 else None,
    )


def sample(logits: Tensor, batch: BatchSampling, positions: Tensor) -> SampledTokens:
    """Sample one token for each row of logits, at its position."""
    logits = logits.float()
    scaled = logits if batch.temperature is None else logits / batch.temperature
    if batch.top_k is not None:
        scaled = _keep_best(scaled, batch.top_k)
    if batch.top_p is not None:
        scaled = _keep_nucleus(scaled, batch.top_p)
    # Double precision: in a large vocabulary many tokens are rarer than the last bit of a float.
    cumulative = torch.softmax(scaled, dim=-1, dtype=torch.float64).cumsum(dim=-1)
    threshold = _uniform(batch.seeds, positions).unsqueeze(1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    if batch.greedy is not None:
        tokens = torch.where(batch.greedy.unsqueeze(1), logits.argmax(dim=-1, keepdim=True), tokens)
    # Not finite if the logits are not, whatever the token is.
    logprobs = logits.gather(1, tokens).squeeze(1) - logits.logsumexp(dim=-1)
    return SampledTokens(tokens.squeeze(1), logprobs)


def _keep_best(logits: Tensor, top_k: Tensor) -> Tensor:
    size = logits.shape[-1]
    counts = torch.where(top_k > 0, top_k.clamp(max=size), size)
    best = logits.topk(int(counts.max()), dim=-1).values
    return logits.masked_fill(logits < best.gather(1, counts - 1), float("-inf"))


def _keep_nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """Keep the most likely tokens whose probabilities sum up to top_p."""
    ordered, order = logits.sort(dim=-1, descending=True)
    shares = torch.softmax(ordered, dim=-1)
    before = shares.cumsum(dim=-1) - shares
    ordered = ordered.masked_fill((before >= top_p) & (top_p < 1), float("-inf"))
    return torch.empty_like(ordered).scatter_(1, order, ordered)


def _uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Numbers in [0, 1) by the mixing steps of SplitMix64 with its wrapping integers."""
    mixed = seeds + positions * -0x61C8864680B583EB
    mixed = (mixed ^ _shifted(mixed, 30)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ _shifted(mixed, 27)) * -0x6B2FB644ECCEEE15
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 11).double() * 2.0**-53


def _shifted(values: Tensor, by: int) -> Tensor:
    """A logical right shift: that of torch keeps the sign."""
    return (values >> by) & ((1 << (64 - by)) - 1)


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """The defaults of requests, and the limits of the model."""

    context: int
    """The maximum of prompt and answer tokens together."""
    vocabulary: int
    ends: frozenset[int]
    """Tokens that end an answer."""
    sampling: GenerationParams
    limit: int | None
    """The maximum of answer tokens."""


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
    """Read generation_config.json, config.json and the tokenizer, as vLLM does."""
    config = cast(_Config, model.config).get_text_config()
    generation = cast(_Generation, model.generation_config)
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise UsageError(
            "the model's config.json has no context length (max_position_embeddings), so it"
            " cannot be served"
        )
    eos = generation.eos_token_id
    ends = {*(eos if isinstance(eos, list) else [eos]), cast(_Ended, tokenizer).eos_token_id}
    return ModelDefaults(
        context=context,
        vocabulary=config.vocab_size,
        ends=frozenset(end for end in ends if end is not None),
        sampling=GenerationParams(
            temperature=1.0 if generation.temperature is None else generation.temperature,
            top_p=generation.top_p or 1.0,
            top_k=generation.top_k or 0,
        ),
        limit=generation.max_new_tokens,
    )
