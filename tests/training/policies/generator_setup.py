"""A generator over a small model, and its answers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tiny_model import make_model

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.training.models import load_model
from plimsoll.training.policies.local.decoding_batch import DecodingBatch, Row, Tokens
from plimsoll.training.policies.local.generator import Generator
from plimsoll.training.policies.local.sampling import GenerationParams

LETTERS = 90
"""Token ids of prompts are below this."""


def prompt(number: int, length: int = 20) -> list[int]:
    """A prompt. Prompts with different numbers have no common prefix."""
    return [(number * 31 + 7 * at + at * at) % LETTERS for at in range(length)]


def row(ids: Sequence[int], tokens: int = 12, *, streamed: bool = False, **sampling: Any) -> Row:
    return Row(
        ids=list(ids),
        prompt=len(ids),
        limit=len(ids) + tokens,
        sampling=GenerationParams(**sampling),
        seed=None,
        streamed=streamed,
    )


@dataclass(slots=True)
class GeneratorSetup:
    """A generator, and the model that it generates with."""

    model: Any
    batch: DecodingBatch
    generator: Generator

    async def ask(self, row: Row) -> Tokens:
        return join_pieces([piece async for piece in self.generator.generate(row)])

    async def ask_all(self, rows: Sequence[Row]) -> list[Tokens]:
        return list(await asyncio.gather(*map(self.ask, rows)))

    def changed(self, seed: int) -> dict[str, torch.Tensor]:
        """Changed weights for the same model."""
        rng = torch.Generator().manual_seed(seed)
        return {
            name: tensor + 0.1 * torch.randn(tensor.shape, generator=rng)
            for name, tensor in self.model.state_dict().items()
        }


def join_pieces(pieces: list[Tokens]) -> Tokens:
    return Tokens(
        ids=[token for each in pieces for token in each.ids],
        logprobs=[value for each in pieces for value in each.logprobs],
        versions=[run for each in pieces for run in each.versions],
        finish=pieces[-1].finish,
    )


@asynccontextmanager
async def generating(
    folder: Path,
    *,
    max_rows: int = 16,
    ends: frozenset[int] = frozenset(),
    updating: Literal["interrupt", "drain"] = "interrupt",
    seed: int = 0,
    version: Version = FIRST_VERSION,
    **shape: Any,
) -> AsyncGenerator[GeneratorSetup]:
    if not (folder / "config.json").exists():
        make_model(folder, **shape)
    model = load_model(folder, device="cpu").requires_grad_(False)
    batch = DecodingBatch(model, version, ends=ends, max_rows=max_rows)
    generator = Generator(batch, seed=seed, updating=updating)
    generator.start()
    try:
        yield GeneratorSetup(model, batch, generator)
    finally:
        await generator.stop()


def logprobs_of(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    """The log probabilities of an answer, computed in one pass without a cache."""
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *answer]])
        logits = model(input_ids=ids, use_cache=False).logits[0].float()
    logprobs = logits.log_softmax(-1)
    return [logprobs[len(prompt) - 1 + at, token].item() for at, token in enumerate(answer)]
