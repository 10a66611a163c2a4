"""The engine behind the server: conversations in, text and tokens out."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from plimsoll.core.versions import Version
from plimsoll.gateway.chat_server.inference_engine import (
    AnswerPiece,
    Prompt,
    RequestError,
    SamplingParams,
)
from plimsoll.training.policies.local.detokenizer import Detokenizer
from plimsoll.training.policies.local.generator import Generator
from plimsoll.training.policies.local.prompts import Prompts
from plimsoll.training.policies.local.rows import Row, Tokens
from plimsoll.training.policies.local.sampling import GenerationParams, ModelDefaults, row_seed

__all__ = ["LocalCompletions"]


class LocalCompletions:
    """Answers conversations with one generator."""

    def __init__(
        self, name: str, generator: Generator, prompts: Prompts, defaults: ModelDefaults
    ) -> None:
        self.name = name
        self.context = defaults.context
        self.generator = generator
        self._prompts = prompts
        self._defaults = defaults
        # One thread: rendering a long conversation must not hold the event loop up.
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
            raise RequestError("the chat template renders nothing of this conversation")
        wrong = max(prompt.ids)
        if wrong >= self._defaults.vocabulary:
            raise RequestError(
                f"the tokenizer gives token {wrong}, and the model knows those below"
                f" {self._defaults.vocabulary}: the folder's tokenizer is of another model"
            )
        return prompt

    async def generate(
        self, prompt: Prompt, wanted: SamplingParams, *, stream: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        row = self._row(prompt, wanted, told=stream or bool(wanted.stop))
        spelling = Detokenizer(self._prompts.text, wanted.stop)
        drawn: list[int] = []
        async with aclosing(self.generator.generate(row)) as heard:
            async for news in heard:
                piece = self._spell(news, spelling)
                drawn += piece.ids
                yield piece
                if piece.finish is not None:
                    break
        if not spelling.stopped:
            self._prompts.remember(prompt, drawn)

    def words(self, ids: Sequence[int]) -> list[str]:
        return self._prompts.words(ids)

    def _row(self, prompt: Prompt, wanted: SamplingParams, *, told: bool) -> Row:
        defaults, ids = self._defaults, prompt.ids
        limit = wanted.limit or defaults.limit or defaults.context
        usual = defaults.taste
        return Row(
            ids=list(ids),
            prompt=len(ids),
            limit=min(len(ids) + limit, defaults.context),
            taste=GenerationParams(
                usual.temperature if wanted.temperature is None else wanted.temperature,
                usual.top_p if wanted.top_p is None else wanted.top_p,
                usual.top_k if wanted.top_k is None else wanted.top_k,
            ),
            seed=None if wanted.seed is None else row_seed(wanted.seed, -1, ids, 0),
            told=told,
        )

    def _spell(self, news: Tokens, spelling: Detokenizer) -> AnswerPiece:
        """Tokens with their text; those behind a stop text are left out."""
        texts: list[str] = []
        count = 0
        for count, token in enumerate(news.ids, 1):
            # The mark that ends an answer is a token of it, and no text.
            last = count == len(news.ids) and news.finish == "stop"
            texts.append(spelling.end() if last else spelling.add(token))
            if spelling.stopped:
                break
        if news.finish == "length" and not spelling.stopped:
            texts.append(spelling.end())
        versions: list[tuple[Version, int]] = []
        left = count
        for version, tokens in news.versions:
            if left > 0:
                versions.append((version, min(tokens, left)))
            left -= tokens
        return AnswerPiece(
            text="".join(texts),
            ids=news.ids[:count],
            logprobs=news.logprobs[:count],
            versions=versions,
            finish="stop" if spelling.stopped else news.finish,
        )
