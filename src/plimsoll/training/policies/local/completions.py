"""Chat completions from the local generator: conversations in, text and tokens out."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from plimsoll.core.versions import Version
from plimsoll.gateway.chat_server.inference_engine import (
    AnswerPiece,
    Prompt,
    RequestError,
    SamplingParams,
)
from plimsoll.training.policies.local.decoding_batch import Row, Tokens
from plimsoll.training.policies.local.generator import Generator
from plimsoll.training.policies.local.prompts import Prompts
from plimsoll.training.policies.local.sampling import GenerationParams, ModelDefaults, row_seed

__all__ = ["Detokenizer", "LocalCompletions"]

BROKEN = "\ufffd"
"""The decoding of an incomplete character."""


class Detokenizer:
    """Emits the text of an answer. Never emits a part of a character or of a stop text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._ids: list[int] = []
        self._since = 0
        """The first token to decode together with new ones: tokens before it may affect spaces."""
        self._emitted = 0
        """The number of tokens whose text was emitted."""
        self._held: str = ""
        """Text held back because it may begin a stop text."""
        self.stopped = False
        """Whether a stop text occurred; it and all text after it are not emitted."""

    def add(self, token: int) -> str:
        """Add a token and return the new text."""
        self._ids.append(token)
        return self._up_to_stop(self._new_text(last=False), last=False)

    def end(self) -> str:
        """The text held back, after the last token."""
        return self._up_to_stop(self._new_text(last=True), last=True)

    def _new_text(self, *, last: bool) -> str:
        before = self._decode(self._ids[self._since : self._emitted])
        text = self._decode(self._ids[self._since :])
        if (text.endswith(BROKEN) and not last) or len(text) <= len(before):
            return ""
        self._since, self._emitted = self._emitted, len(self._ids)
        return text[len(before) :]

    def _up_to_stop(self, text: str, *, last: bool) -> str:
        if not self._stop:
            return text
        text = self._held + text
        ends = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)]
        emitted = len(text) if last else max(0, len(text) - self._longest + 1)
        self._held = text[emitted:]
        return text[:emitted]


class LocalCompletions:
    """Completes conversations with one generator."""

    def __init__(
        self, name: str, generator: Generator, prompts: Prompts, defaults: ModelDefaults
    ) -> None:
        self.name = name
        self.context = defaults.context
        self.generator = generator
        self._prompts = prompts
        self._defaults = defaults
        # A thread: rendering a long conversation must not block the event loop.
        self._render = ThreadPoolExecutor(1, thread_name_prefix="plimsoll-prompts")

    @property
    def problem(self) -> str:
        return self.generator.problem

    def close(self) -> None:
        self._render.shutdown(wait=False, cancel_futures=True)

    async def prompt(self, messages: list[dict[str, object]], tools: list[object] | None) -> Prompt:
        loop = asyncio.get_running_loop()
        prompt = await loop.run_in_executor(self._render, self._prompts.render, messages, tools)
        if not prompt.ids:
            raise RequestError("the chat template renders this conversation as an empty text")
        wrong = max(prompt.ids)
        if wrong >= self._defaults.vocabulary:
            raise RequestError(
                f"the tokenizer gives token {wrong}, but the model has only tokens below"
                f" {self._defaults.vocabulary}: the folder's tokenizer is of another model"
            )
        return prompt

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        row = self._row(prompt, sampling, streamed=stream or bool(sampling.stop))
        detokenizer = Detokenizer(self._prompts.text, sampling.stop)
        drawn: list[int] = []
        async with aclosing(self.generator.generate(row)) as events:
            async for new in events:
                piece = self._piece(new, detokenizer)
                drawn += piece.ids
                yield piece
                if piece.finish is not None:
                    break
        if not detokenizer.stopped:
            self._prompts.remember(prompt, drawn)

    def words(self, ids: Sequence[int]) -> list[str]:
        return self._prompts.words(ids)

    def _row(self, prompt: Prompt, request: SamplingParams, *, streamed: bool) -> Row:
        defaults, ids = self._defaults, prompt.ids
        limit = request.limit or defaults.limit or defaults.context
        params = defaults.sampling
        return Row(
            ids=list(ids),
            prompt=len(ids),
            limit=min(len(ids) + limit, defaults.context),
            sampling=GenerationParams(
                params.temperature if request.temperature is None else request.temperature,
                params.top_p if request.top_p is None else request.top_p,
                params.top_k if request.top_k is None else request.top_k,
            ),
            seed=None if request.seed is None else row_seed(request.seed, -1, ids, 0),
            streamed=streamed,
        )

    def _piece(self, new: Tokens, detokenizer: Detokenizer) -> AnswerPiece:
        """Tokens with their text, up to a stop text."""
        texts: list[str] = []
        count = 0
        for count, token in enumerate(new.ids, 1):
            # The end-of-sequence token is part of the answer, but not of its text.
            last = count == len(new.ids) and new.finish == "stop"
            texts.append(detokenizer.end() if last else detokenizer.add(token))
            if detokenizer.stopped:
                break
        if new.finish == "length" and not detokenizer.stopped:
            texts.append(detokenizer.end())
        versions: list[tuple[Version, int]] = []
        left = count
        for version, tokens in new.versions:
            if left > 0:
                versions.append((version, min(tokens, left)))
            left -= tokens
        return AnswerPiece(
            text="".join(texts),
            ids=new.ids[:count],
            logprobs=new.logprobs[:count],
            versions=versions,
            finish="stop" if detokenizer.stopped else new.finish,
        )
