"""verl's servers as an engine behind a Chat Completions server: tokens in, tokens out."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, Protocol, cast

import msgspec
from transformers import PreTrainedTokenizerBase

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.core.versions import Version
from plimsoll.gateway.chat_server.inference_engine import AnswerPiece, Prompt, SamplingParams
from plimsoll.training.policies.local.prompts import Prompts

__all__ = ["Manager", "Sampling", "VerlEngine", "agent_loop", "check_interface"]


class Generated(Protocol):
    """The part of verl's `TokenOutput` that is used."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


class Manager(Protocol):
    """The part of verl's `LLMServerClient` that is used."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Generated: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """verl's sampling settings."""

    params: Mapping[str, Any]

    @property
    def key(self) -> str:
        return msgspec.json.encode(dict(self.params), order="sorted").decode()

    @property
    def logprobs(self) -> bool:
        """True if verl requests log probabilities; Plimsoll always does."""
        return bool(self.params.get("logprobs"))


class VerlEngine:
    """Generates with verl's servers, as long as a conversation fits into the context."""

    name = "verl"
    problem = ""

    def __init__(
        self,
        manager: Manager,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        context: int,
    ) -> None:
        self.context = context
        self._manager = manager
        self._sampling = sampling
        self._end = cast(int, tokenizer.eos_token_id)
        self._prompts = Prompts(tokenizer, frozenset({self._end}))

    async def prompt(self, messages: list[dict[str, object]], tools: list[object] | None) -> Prompt:
        return await asyncio.to_thread(self._prompts.render, messages, tools)

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Generate the whole answer at once, also for a streaming request."""
        del stream
        limit = min(sampling.limit or self.context, self.context - len(prompt.ids))
        params = {**self._sampling.params, "logprobs": True, "max_tokens": limit}
        if sampling.stop:
            params["stop"] = list(sampling.stop)
        made = await self._manager.generate(
            _conversation(prompt.text), prompt_ids=list(prompt.ids), sampling_params=params
        )
        if made.stop_reason == "aborted" or made.log_probs is None:
            raise PolicyError(f"verl's server gave up an answer ({made.stop_reason})")
        ids = list(made.token_ids)
        self._prompts.remember(prompt, ids)
        is_ended = ids[-1:] == [self._end]
        step = cast("int | None", made.extra_fields.get("min_global_steps"))
        yield AnswerPiece(
            text=self._prompts.text(ids[:-1] if is_ended else ids),
            ids=ids,
            logprobs=list(made.log_probs),
            versions=[(Version(0, step or 0), len(ids))],
            finish="length" if len(ids) >= limit and not is_ended else "stop",
        )

    def words(self, ids: Sequence[int]) -> list[str]:
        return self._prompts.words(ids)


def _conversation(text: str) -> str:
    """The key that routes a conversation to the server with its KV cache: its beginning."""
    return hashlib.blake2b(text[:4096].encode("utf-8", "replace"), digest_size=8).hexdigest()


_SUPPORTED = "0.9.1"
_FIELDS = {"prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score"}


class AgentLoop(Protocol):
    """The part of verl's module that is used."""

    AgentLoopOutput: Any
    AgentLoopMetrics: Any


def agent_loop() -> AgentLoop:
    """Import verl's module on first use: verl is slow to import."""
    return cast(AgentLoop, import_module("verl.experimental.agent_loop.agent_loop"))


def check_interface() -> None:
    """Raise `UsageError` if verl is missing or its agent loop interface differs."""
    try:
        version = metadata.version("verl")
        made = agent_loop().AgentLoopOutput
    except (metadata.PackageNotFoundError, ImportError, AttributeError) as error:
        raise UsageError(
            f"there is no agent loop of verl: install verl {_SUPPORTED} ({error})"
        ) from error
    if missing := _FIELDS - made.model_fields.keys():
        names = ", ".join(sorted(missing))
        raise UsageError(f"verl {version} has other agent loops than {_SUPPORTED}: no {names}")
