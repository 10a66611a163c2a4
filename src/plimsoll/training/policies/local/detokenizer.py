"""Incremental detokenization: the text of an answer, token by token."""

from collections.abc import Callable, Sequence

__all__ = ["Detokenizer"]

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
