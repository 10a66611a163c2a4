"""Conversations as tokens: rendered by the chat template, with the tokens really sampled.

A text has more than one tokenization, and a model may sample another one than its tokenizer
produces. So sampled answers are remembered: a conversation that begins with a remembered one
begins with the same tokens.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from plimsoll.gateway.chat_server.inference_engine import Prompt, RequestError
from plimsoll.gateway.chat_server.tool_calls import OPENING_TAG

__all__ = ["Prompts"]

MAX_TOKENS = 2_000_000
"""The limit of remembered tokens, eight bytes each."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
    def copy(self) -> "_Hash": ...


class _Tokenizer(Protocol):
    chat_template: object

    def apply_chat_template(
        self, conversation: list[dict[str, object]], **options: object
    ) -> str: ...
    def __call__(self, text: str, **options: object) -> dict[str, list[int]]: ...
    def decode(self, ids: Sequence[int], **options: object) -> str: ...


class Prompts:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int]) -> None:
        self._tokenizer = cast(_Tokenizer, tokenizer)
        self._ends = [self.text([token]) for token in ends]
        template = str(self._tokenizer.chat_template)
        # Only calls with this tag are parsed in answers.
        self._takes_tools = "tools" in template and OPENING_TAG in template
        self._remembered: OrderedDict[bytes, array[int]] = OrderedDict()
        """Tokens of conversations that end with an answer of this model, by text hash."""
        self._token_count = 0
        self._words: dict[int, str] = {}

    def render(self, messages: list[dict[str, object]], tools: list[object] | None) -> Prompt:
        """The prompt of a conversation. Raises `RequestError` if the template does not take it."""
        if tools and not self._takes_tools:
            raise RequestError(
                "this model's chat template does not support tools: send the request without them"
            )
        try:
            text = self._tokenizer.apply_chat_template(
                [_plain(message) for message in messages],
                tools=tools,
                add_generation_prompt=True,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise RequestError(f"the chat template rejects the conversation: {error}") from error
        ids, rest = self._find(text)
        return Prompt(text, [*ids, *self._ids(text[rest:])])

    def remember(self, prompt: Prompt, answer: list[int]) -> None:
        """Remember the sampled answer of a prompt."""
        key = _hash(prompt.text + self.text(answer)).digest()
        self._token_count -= len(self._remembered.pop(key, ()))
        self._remembered[key] = array("q", (*prompt.ids, *answer))
        self._token_count += len(prompt.ids) + len(answer)
        while self._token_count > MAX_TOKENS and len(self._remembered) > 1:
            self._token_count -= len(self._remembered.popitem(last=False)[1])

    def text(self, ids: Sequence[int]) -> str:
        """Decode tokens, special ones included: they become the same tokens again."""
        return self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def words(self, ids: Sequence[int]) -> list[str]:
        for token in {*ids} - self._words.keys():
            self._words[token] = self.text([token])
        return [self._words[token] for token in ids]

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []

    def _find(self, text: str) -> tuple[Sequence[int], int]:
        """The tokens of the longest remembered prefix, and the end of that prefix in the text."""
        found: tuple[Sequence[int], int] = ((), 0)
        hashed, at = _hash(""), 0
        for end in self._answer_ends(text) if self._remembered else ():
            hashed.update(text[at:end].encode("utf-8", "replace"))
            at = end
            ids = self._remembered.get(hashed.digest())
            if ids is not None:
                found = ids, end
        return found

    def _answer_ends(self, text: str) -> list[int]:
        """Positions where an answer may end: after an end mark, or before it if it was cut off."""
        ends: set[int] = set()
        for mark in self._ends:
            at = text.find(mark)
            while at >= 0:
                ends |= {at, at + len(mark)}
                at = text.find(mark, at + 1)
        return sorted(ends)


def _hash(text: str) -> _Hash:
    return hashlib.sha256(text.encode("utf-8", "replace"))


def _plain(message: dict[str, object]) -> dict[str, object]:
    """A message in the form that templates expect: text in one piece, arguments as objects."""
    plain = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join(_part(part) for part in cast(list[object], content))
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [_call(call) for call in cast(list[object], calls)]
    return plain


def _part(part: object) -> str:
    text = cast(dict[str, object], part).get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise RequestError("this model accepts text only: a part of a message is not text")
    return text


def _call(call: object) -> object:
    if not isinstance(call, dict):
        return call
    parts = cast(dict[str, object], call)
    function = parts.get("function")
    if not isinstance(function, dict):
        return parts
    named = cast(dict[str, object], function)
    arguments = named.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise RequestError(f"the arguments of a tool call are not JSON: {error}") from error
    return {**parts, "function": {**named, "arguments": arguments}}
