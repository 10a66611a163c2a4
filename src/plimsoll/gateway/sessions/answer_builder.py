"""Builds a whole answer from the pieces of a stream."""

from collections.abc import Sequence

import msgspec

from plimsoll.core.versions import Version
from plimsoll.gateway.completions import (
    Answer,
    CallDelta,
    Chunk,
    Refusal,
    TokenIds,
    Usage,
)
from plimsoll.trajectories.messages import Message, Text, ToolCall
from plimsoll.trajectories.records import Finish

__all__ = ["AnswerBuilder"]


class _CallBuilder:
    """A tool call whose arguments are still arriving."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def add(self, delta: CallDelta) -> None:
        self.id = self.id or delta.id
        self.name = self.name or delta.name
        if delta.arguments:
            self.arguments.append(delta.arguments)

    def build(self) -> ToolCall:
        return ToolCall(id=self.id, name=self.name, arguments="".join(self.arguments))


class AnswerBuilder:
    """Collects the pieces of an answer, and counts the tokens of each policy version."""

    def __init__(self, version: Version) -> None:
        self._version = version
        """The version when the request was sent. Versions in the pieces take precedence."""
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallBuilder] = {}
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        self._prompt: list[int] | msgspec.Raw | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._runs: list[tuple[Version, int]] = []

    @property
    def versions(self) -> tuple[tuple[Version, int], ...]:
        return tuple(self._runs)

    def add(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._add(chunk)
            for version, count in chunk.versions or ((self._version, len(chunk.ids or ())),):
                self._count_version(version, count)

    def _count_version(self, version: Version, count: int) -> None:
        if not count:
            return
        if self._runs and self._runs[-1][0] == version:
            count += self._runs.pop()[1]
        self._runs.append((version, count))

    def _add(self, chunk: Chunk) -> None:
        if chunk.text:
            self._texts.append(chunk.text)
        if chunk.reasoning:
            self._reasoning.append(chunk.reasoning)
        for delta in chunk.calls:
            self._calls.setdefault(delta.index, _CallBuilder()).add(delta)
        if chunk.finish is not None:
            self._finish = chunk.finish
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.prompt_ids is not None:
            self._prompt = chunk.prompt_ids
        if chunk.ids:
            self._ids += chunk.ids
        if chunk.logprobs:
            self._logprobs += chunk.logprobs

    def answer(self, id: str) -> Answer:
        """The whole answer. Raises `Refusal` if the stream ended before the answer was complete."""
        if self._finish is None:
            raise Refusal("upstream", "the upstream's stream ended before the answer was complete")
        text = "".join(self._texts)
        message = Message(
            role="assistant",
            parts=(Text(text),) if text else (),
            reasoning="".join(self._reasoning),
            calls=tuple(call.build() for _, call in sorted(self._calls.items())),
        )
        return Answer(
            id=id, message=message, finish=self._finish, usage=self._usage, tokens=self._tokens()
        )

    def _tokens(self) -> TokenIds | None:
        if not self._ids and self._prompt is None:
            return None
        return TokenIds(self._prompt, self._ids, self._logprobs or None)
