"""A scripted answer that is longer than it may be, cut as a server of models cuts one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Said", "ScriptedCall", "shortened"]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call of an answer."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer consists of."""

    reasoning: str
    text: str
    calls: Sequence[ScriptedCall]


def shortened(said: Said, tokens: int) -> Said:
    """What fits into so many tokens, without its end mark. A letter is never cut."""
    room = _Room(tokens)
    # Around reasoning stand two marks, and two before the arguments of a call.
    reasoning = room.take(said.reasoning, marks=2) if said.reasoning else ""
    text = room.take(said.text)
    calls: list[ScriptedCall] = []
    for call in said.calls:
        named = room.take(call.name, marks=2)
        if named != call.name or room.left < 0:
            break
        calls.append(replace(call, arguments=room.take(call.arguments)))
    return Said(reasoning, text, calls)


class _Room:
    """Tokens that are left. What does not fit leaves none for what follows."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def take(self, text: str, marks: int = 0) -> str:
        data = text.encode()
        room = max(0, self.left - marks)
        self.left -= marks + len(data)
        return data[:room].decode("utf-8", "ignore")
