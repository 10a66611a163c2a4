"""The limits of a session, the usage counted against them, and the refusals at the limit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from plimsoll.core.stopwatch import Stopwatch, Timer
from plimsoll.gateway.completions import Answer, Refusal

__all__ = ["MAX_BODY_BYTES", "MAX_CONCURRENT", "Budget", "Limits"]

MAX_BODY_BYTES = 1 << 30
MAX_CONCURRENT = 4096
"""The upper bounds of configured limits: larger values are typing errors, or fill the memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a session; None means unlimited. Reaching the limit of turns, tokens or seconds
    ends the trial with `budget`; the others only refuse a request."""

    turns: int | None = None
    """Answered requests."""
    tokens: int | None = None
    """Tokens of all prompts and answers, as the upstream counts them."""
    seconds: float | None = None
    concurrent: int = 16
    """Requests in flight."""
    body_bytes: int = 64 << 20
    """Bytes of one request body, decompressed."""
    media_hosts: tuple[str, ...] = ()
    """Hosts that a request may name media of: see `MediaHosts`."""


class Budget:
    """Counts turns and tokens. Time runs by the session's clock from the creation of the budget."""

    def __init__(
        self, limits: Limits, clock: Stopwatch, on_time_up: Callable[[Refusal], None]
    ) -> None:
        self.turns = 0
        self.prompt_tokens = 0
        self.answer_tokens = 0
        self._limits = limits
        self._refusal: Refusal | None = None
        self._full_context = ""
        self._on_time_up = on_time_up
        self.out_of_time = False
        self._timer: Timer | None = None
        if limits.seconds is not None:
            expire = partial(self._on_timer, limits.seconds)
            self._timer = clock.call_later(limits.seconds, expire)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def exhausted(self) -> str:
        """The limit that was reached, or the policy's full context; else ""."""
        return self._refusal.message if self._refusal is not None else self._full_context

    def check(self, in_flight: int) -> None:
        """Raise the refusal for another request, if a limit is reached."""
        limits = self._limits
        if self._refusal is None:
            self._refusal = self._reached()
        if self._refusal is not None:
            raise Refusal(self._refusal.kind, self._refusal.message)
        if in_flight >= limits.concurrent:
            raise Refusal("too_many", f"{in_flight} requests are in flight, the session's limit")
        if limits.turns is not None and self.turns + in_flight >= limits.turns:
            raise Refusal("too_many", "the session's last turn is being answered")

    def _reached(self) -> Refusal | None:
        limits = self._limits
        if limits.turns is not None and self.turns >= limits.turns:
            return Refusal("budget", f"the session's {limits.turns} turns are used up")
        if limits.tokens is not None and self.tokens >= limits.tokens:
            used = f"the session has used {self.tokens} tokens, of {limits.tokens}"
            return Refusal("context_length", used)
        return None

    def add(self, answer: Answer) -> None:
        self.turns += 1
        self._full_context = ""
        if answer.usage is not None:
            self.prompt_tokens += answer.usage.prompt
            self.answer_tokens += answer.usage.answer
        elif answer.tokens is not None:
            self.prompt_tokens += _length(answer.tokens.prompt)
            self.answer_tokens += len(answer.tokens.answer)

    def context_full(self, message: str) -> None:
        """Note that the policy's context is full. The agent may still shorten its conversation."""
        self._full_context = message

    def close(self) -> None:
        self._on_time_up = _ignore
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, seconds: float) -> None:
        self._timer = None
        self.out_of_time = True
        if self._refusal is None:
            self._refusal = Refusal("budget", f"the session's {seconds:g} s are over")
        self._on_time_up(self._refusal)


def _ignore(_: Refusal) -> None:
    """Replaces the callback, which would otherwise keep the session alive."""


def _length(ids: list[int] | msgspec.Raw | None) -> int:
    if isinstance(ids, msgspec.Raw):
        return bytes(ids).count(b",") + 1
    return len(ids or ())
