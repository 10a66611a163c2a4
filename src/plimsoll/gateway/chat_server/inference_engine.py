"""The interface between the chat server and an inference engine."""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

import msgspec

from plimsoll.core.versions import Version

__all__ = ["AnswerPiece", "InferenceEngine", "Prompt", "RequestError", "SamplingParams"]


class RequestError(Exception):
    """A request that cannot be answered; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Prompt(msgspec.Struct, frozen=True):
    """A rendered conversation, up to the beginning of the answer."""

    text: str
    ids: list[int]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of an answer. None means the engine's default."""

    limit: int | None = None
    """The maximum number of tokens of the answer."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class AnswerPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an answer. The text may lag behind the tokens: a character can take several
    tokens."""

    text: str
    ids: list[int]
    logprobs: list[float]
    versions: list[tuple[Version, int]]
    """Runs of (version, number of these tokens), in order."""
    finish: Literal["stop", "length"] | None = None
    """The finish reason, in the last piece."""


class InferenceEngine(Protocol):
    """Generates answers. All methods are called on one event loop."""

    @property
    def name(self) -> str:
        """The model name that requests use."""
        ...

    @property
    def context(self) -> int:
        """The context length: the maximum number of tokens of a prompt and its answer."""
        ...

    @property
    def problem(self) -> str:
        """The reason why the engine has stopped; empty while it runs."""
        ...

    async def prompt(self, messages: list[dict[str, object]], tools: list[object] | None) -> Prompt:
        """Render a conversation. Raises `RequestError` if it cannot be rendered."""
        ...

    def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Generate the answer, in pieces or as one piece. Close the generator to abandon it.

        Raises `PolicyError` if the engine fails.
        """
        ...

    def words(self, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        ...
