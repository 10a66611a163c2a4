"""Turns the tokens of an answer into text as they come."""

from collections.abc import Callable, Sequence

__all__ = ["Detokenizer"]

BROKEN = "\ufffd"
"""What a piece of a letter is spelt as."""


class Detokenizer:
    """The text of an answer, token by token: never half of a letter, nor of a stop text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._ids: list[int] = []
        self._since = 0
        """Where the tokens begin that are spelt together: the ones before may change a blank."""
        self._spelt = 0
        """Up to where they were told."""
        self._held: str = ""
        """What may be the beginning of a stop text."""
        self.stopped = False
        """Whether a stop text came; it and what is behind it are not told."""

    def add(self, token: int) -> str:
        """The text that is new."""
        self._ids.append(token)
        return self._through(self._news(last=False), last=False)

    def end(self) -> str:
        """What was kept back, where no more comes."""
        return self._through(self._news(last=True), last=True)

    def _news(self, *, last: bool) -> str:
        known = self._decode(self._ids[self._since : self._spelt])
        text = self._decode(self._ids[self._since :])
        if (text.endswith(BROKEN) and not last) or len(text) <= len(known):
            return ""
        self._since, self._spelt = self._spelt, len(self._ids)
        return text[len(known) :]

    def _through(self, text: str, *, last: bool) -> str:
        if not self._stop:
            return text
        text = self._held + text
        ends = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)]
        told = len(text) if last else max(0, len(text) - self._longest + 1)
        self._held = text[told:]
        return text[:told]
