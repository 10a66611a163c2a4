"""The tokens of an exchange, as the pieces of the exchanges that it was made of."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.trajectories.records import Exchange
from plimsoll.trajectories.tokens import WIDTH, unpack_ids

__all__ = ["Span", "length_of", "spans_of"]


@dataclass(frozen=True, slots=True)
class Span:
    """The first ids of what an exchange added: to its prompt, or as its answer."""

    exchange: Exchange
    is_answer: bool
    length: int

    @property
    def ids(self) -> "array[int]":
        tokens = self.exchange.tokens
        assert tokens is not None
        packed = tokens.answer if self.is_answer else tokens.prompt
        return unpack_ids(packed[: self.length * WIDTH])


def length_of(exchange: Exchange) -> int:
    """How many tokens its prompt and answer have."""
    tokens = exchange.tokens
    if tokens is None:
        return 0
    return tokens.kept + (len(tokens.prompt) + len(tokens.answer)) // WIDTH


def spans_of(exchanges: Sequence[Exchange], exchange: Exchange) -> list[Span]:
    """All tokens of an exchange, in order: those of its parent that it keeps, then its own."""
    spans: list[Span] = []
    limit = sys.maxsize
    while (tokens := exchange.tokens) is not None:
        own = max(limit - tokens.kept, 0)
        prompt = min(len(tokens.prompt) // WIDTH, own)
        answer = min(len(tokens.answer) // WIDTH, own - prompt)
        if answer:
            spans.append(Span(exchange, True, answer))
        if prompt:
            spans.append(Span(exchange, False, prompt))
        limit = min(limit, tokens.kept)
        if limit == 0 or exchange.parent < 0:
            break
        exchange = exchanges[exchange.parent]
    spans.reverse()
    return spans
