"""A trajectory in memory."""

from array import array
from dataclasses import dataclass, field

import msgspec

from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.records import (
    Closed,
    Exchange,
    MessageAdded,
    Opened,
    ToolsAdded,
    Trouble,
)
from plimsoll.trajectories.samples import Sample, make_samples
from plimsoll.trajectories.token_sequence import spans_of

__all__ = ["Node", "Trajectory"]

Node = ToolsAdded | MessageAdded


@dataclass(slots=True, weakref_slot=True, eq=False)
class Trajectory:
    """The messages, exchanges and troubles of one session."""

    opened: Opened
    closed: Closed | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    """Messages, and the sets of tools at the roots of conversations, by id."""
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    """Exchanges by id, in the order of their answers."""
    troubles: list[Trouble] = field(default_factory=list[Trouble])
    problem: str = ""
    """The reason why it could not be read to its end: not closed yet, truncated, or damaged."""

    @property
    def complete(self) -> bool:
        """Whether it was closed and read completely."""
        return self.closed is not None and not self.problem

    def message(self, node: int) -> Message:
        found = self.nodes[node]
        assert isinstance(found, MessageAdded), f"node {node} holds tools, not a message"
        return found.message

    def path_of(self, exchange: Exchange) -> list[int]:
        """The message ids of an exchange, from the first to its answer."""
        return [*self._path(exchange), exchange.answer]

    def messages_of(self, exchange: Exchange) -> list[Message]:
        """The messages of an exchange's prompt."""
        return [self.message(node) for node in self._path(exchange)]

    def answer_of(self, exchange: Exchange) -> Message:
        return self.message(exchange.answer)

    def tools_of(self, exchange: Exchange) -> msgspec.Raw | None:
        """The tools of an exchange: a JSON array in the form of Chat Completions."""
        node = exchange.prompt
        while node >= 0:
            found = self.nodes[node]
            if isinstance(found, ToolsAdded):
                return found.tools
            node = found.parent
        return None

    def ids_of(self, exchange: Exchange) -> "array[int]":
        """All token ids of the prompt; empty if the inference server returned none."""
        ids = array("i")
        for span in spans_of(self.exchanges, exchange):
            if not (span.is_answer and span.exchange is exchange):
                ids.extend(span.ids)
        return ids

    def samples(self) -> list[Sample]:
        """The training samples: one for each chain of exchanges that extend each other."""
        return make_samples(self.exchanges, self._added_role)

    def _path(self, exchange: Exchange) -> list[int]:
        """The messages of a prompt. Among equal answers, those that the exchange follows."""
        followed = self._followed(exchange)
        path: list[int] = []
        node = exchange.prompt
        while node >= 0:
            found = self.nodes[node]
            if isinstance(found, ToolsAdded):
                break
            path.append(followed.get(found.parent, node))
            node = found.parent
        path.reverse()
        return path

    def _followed(self, exchange: Exchange) -> dict[int, int]:
        """The answers that an exchange follows, by the message that each of them answers."""
        followed: dict[int, int] = {}
        while exchange.branch in ("extends", "retokenized", "again"):
            continues_parent = exchange.branch != "again"
            exchange = self.exchanges[exchange.parent]
            if continues_parent:
                followed.setdefault(exchange.prompt, exchange.answer)
        return followed

    def _added_role(self, exchange: Exchange, extended: Exchange | None) -> str:
        """The role of all messages after those of `extended`, if it is the same; else `context`."""
        roles: set[str] = set()
        node = exchange.prompt
        while node >= 0:
            found = self.nodes[node]
            if isinstance(found, ToolsAdded):
                return "context"
            if extended is not None and found.parent == extended.prompt:
                break
            roles.add(found.message.role)
            node = found.parent
        return roles.pop() if len(roles) == 1 else "context"
