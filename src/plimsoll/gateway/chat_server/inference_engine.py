"""What the server asks of an engine: prompts from conversations, tokens from prompts."""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

import msgspec

from plimsoll.core.versions import Version

__all__ = ["AnswerPiece", "InferenceEngine", "Prompt", "RequestError", "SamplingParams"]


class RequestError(Exception):
    """A request that cannot be answered as it is; `status` is that of HTTP."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Prompt(msgspec.Struct, frozen=True):
    """A conversation, up to where the answer begins."""

    text: str
    ids: list[int]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is to be generated. None is the engine's own choice."""

    limit: int | None = None
    """The most tokens that it may have."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class AnswerPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer. The text may lag behind the tokens: a letter can be several."""

    text: str
    ids: list[int]
    logprobs: list[float]
    versions: list[tuple[Version, int]]
    """Which version generated how many of these tokens, in their order."""
    finish: Literal["stop", "length"] | None = None
    """Of the last piece: why it is the last."""


class InferenceEngine(Protocol):
    """Generates answers. All of it is called on one event loop."""

    @property
    def name(self) -> str:
        """The model's name, as requests give it."""
        ...

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        ...

    @property
    def problem(self) -> str:
        """Why it generates nothing any more; empty while it does."""
        ...

    async def prompt(self, messages: list[dict[str, object]], tools: list[object] | None) -> Prompt:
        """A conversation as the model reads it. Raises `RequestError` for what it cannot render."""
        ...

    def generate(
        self, prompt: Prompt, wanted: SamplingParams, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        """The answer: in pieces as they come, or as one. Closing it gives the answer up.

        Raises `PolicyError` where it cannot go on.
        """
        ...

    def words(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself."""
        ...
