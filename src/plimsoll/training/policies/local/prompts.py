"""Conversations as tokens: the tokenizer's chat template, and the tokens that were really drawn.

A text can be cut into tokens in more than one way, and a model need not draw the way that its
tokenizer would. So what was drawn is remembered: a conversation whose text begins with one that
is known begins with its tokens.
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

__all__ = ["Prompts"]

REMEMBERED = 2_000_000
"""Tokens of conversations that are remembered, eight bytes each."""
CALL_MARK = "<tool_call>"
"""How the calls of an answer are found; templates that write them otherwise get no tools."""


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
        self._takes_tools = "tools" in template and CALL_MARK in template
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        """Conversations up to an answer of this model: the hash of their text, their tokens."""
        self._held = 0
        self._words: dict[int, str] = {}

    def render(self, messages: list[dict[str, object]], tools: list[object] | None) -> Prompt:
        """Raises `RequestError` for what the template does not take."""
        if tools and not self._takes_tools:
            raise RequestError("this model's chat template has no tools: ask without them")
        try:
            text = self._tokenizer.apply_chat_template(
                [_plain(message) for message in messages],
                tools=tools,
                add_generation_prompt=True,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise RequestError(f"the chat template refuses the conversation: {error}") from error
        known, rest = self._find(text)
        return Prompt(text, [*known, *self._ids(text[rest:])])

    def remember(self, prompt: Prompt, answer: list[int]) -> None:
        """The answer that was drawn after a prompt."""
        key = _hash(prompt.text + self.text(answer)).digest()
        self._held -= len(self._known.pop(key, ()))
        self._known[key] = array("q", (*prompt.ids, *answer))
        self._held += len(prompt.ids) + len(answer)
        while self._held > REMEMBERED and len(self._known) > 1:
            self._held -= len(self._known.popitem(last=False)[1])

    def text(self, ids: Sequence[int]) -> str:
        """Marks are left in: they become the same tokens again when the text comes back."""
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
        """The tokens of the longest beginning that is known, and where the rest begins."""
        found: tuple[Sequence[int], int] = ((), 0)
        hashed, at = _hash(""), 0
        for end in self._turns(text) if self._known else ():
            hashed.update(text[at:end].encode("utf-8", "replace"))
            at = end
            ids = self._known.get(hashed.digest())
            if ids is not None:
                found = ids, end
        return found

    def _turns(self, text: str) -> list[int]:
        """Where an answer may end: behind a mark, or before it where it was cut short."""
        places: set[int] = set()
        for mark in self._ends:
            at = text.find(mark)
            while at >= 0:
                places |= {at, at + len(mark)}
                at = text.find(mark, at + 1)
        return sorted(places)


def _hash(text: str) -> _Hash:
    return hashlib.sha256(text.encode("utf-8", "replace"))


def _plain(message: dict[str, object]) -> dict[str, object]:
    """A message in the form that templates are written for: text in one piece, arguments as
    objects."""
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
        raise RequestError("this model reads text alone: a part of a message is something else")
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
            raise RequestError(f"the arguments of a tool call are no JSON: {error}") from error
    return {**parts, "function": {**named, "arguments": arguments}}
