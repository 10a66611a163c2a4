"""The message tree of a session: each message is a child of the one that it follows.

The tools of a conversation are the root of its messages. A message is identified by its content
(digest) and by its raw bytes (key), so that only the new messages of a growing conversation are
parsed. The tree holds no text.
"""

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from plimsoll.trajectories.messages import (
    Message,
    json_digest,
    message_digest,
    path_digest,
    raw_key,
)
from plimsoll.trajectories.records import MessageAdded, ToolsAdded

__all__ = ["ROOT", "History", "Node", "NodeAdded", "Position", "Tree"]

ROOT = -1
"""The parent of tools, and of messages without tools."""
NodeAdded = ToolsAdded | MessageAdded


class History(Protocol):
    """The messages of a request, each parsed only if it is new to the tree."""

    def __len__(self) -> int: ...

    def key(self, index: int) -> bytes:
        """At least sixteen bytes, equal for messages of equal bytes."""
        ...

    def message(self, index: int) -> Message: ...


class _NewMessage(msgspec.Struct, frozen=True):
    key: bytes
    digest: bytes
    message: Message


class _NewTools(msgspec.Struct, frozen=True):
    key: bytes
    digest: bytes
    tools: msgspec.Raw


class Position(msgspec.Struct, frozen=True):
    """The position of a request: its last known node, and the new nodes after it."""

    node: int
    tools: _NewTools | None
    messages: tuple[_NewMessage, ...]


@dataclass(slots=True)
class Node:
    """A message or a set of tools."""

    parent: int
    path: bytes
    """The digest of this message and all before it, without tools."""
    children: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Children by digest and by key."""
    prompted: list[int] = field(default_factory=list[int])
    """The exchanges whose prompt ends here."""
    answered: list[int] = field(default_factory=list[int])
    """The exchanges whose answer this is."""


class Tree:
    """Finds and adds messages. Nodes are never removed or renumbered."""

    def __init__(self) -> None:
        self._root = Node(ROOT, b"")
        self._nodes: list[Node] = []

    def __getitem__(self, node: int) -> Node:
        return self._root if node == ROOT else self._nodes[node]

    def locate(self, history: History, tools: msgspec.Raw | None) -> Position:
        """Locate a request, and parse its new messages. Others see no change before `add`."""
        node, new_tools = self._locate_tools(tools)
        new: list[_NewMessage] = []
        children = self[node].children if new_tools is None else {}
        for index in range(len(history)):
            key = history.key(index)
            child = children.get(key)
            if child is None:
                message = history.message(index)
                digest = message_digest(message)
                child = children.get(digest)
                if child is None:
                    new.append(_NewMessage(key, digest, message))
                    children = {}
                    continue
                children[key] = child
            node = child
            children = self._nodes[child].children
        return Position(node, new_tools, tuple(new))

    def add(self, position: Position, added: list[NodeAdded]) -> int:
        """Add the new nodes of a request, and return its last message. Their records go to `added`.

        Another request may have added some of the nodes since it was located.
        """
        node = self._add_tools(position, added)
        for new in position.messages:
            children = self[node].children
            child = children.get(new.digest)
            if child is None:
                child = self._new(node, new.digest, new.message, added)
                children[new.digest] = child
            children[new.key] = child
            node = child
        return node

    def add_answer(
        self, prompt: int, message: Message, exchange: int, added: list[NodeAdded]
    ) -> int:
        """Add an answer as a new node, because its reasoning is its own.

        If an equal answer exists, later messages become children of the first one.
        """
        parent_node = self[prompt]
        digest = message_digest(message)
        node = self._new(prompt, digest, message, added)
        parent_node.prompted.append(exchange)
        self[parent_node.children.setdefault(digest, node)].answered.append(exchange)
        return node

    def _locate_tools(self, tools: msgspec.Raw | None) -> tuple[int, _NewTools | None]:
        if tools is None or bytes(tools) == b"[]":
            return ROOT, None
        children = self._root.children
        key = raw_key(tools)
        node = children.get(key)
        if node is None:
            digest = json_digest(tools)
            node = children.get(digest)
            if node is None:
                # A copy: a slice would keep the whole body alive.
                return ROOT, _NewTools(key, digest, tools.copy())
            children[key] = node
        return node, None

    def _add_tools(self, position: Position, added: list[NodeAdded]) -> int:
        new = position.tools
        if new is None:
            return position.node
        children = self._root.children
        node = children.get(new.digest)
        if node is None:
            node = len(self._nodes)
            self._nodes.append(Node(ROOT, b""))
            children[new.digest] = node
            added.append(ToolsAdded(node, new.tools))
        children[new.key] = node
        return node

    def _new(self, parent: int, digest: bytes, message: Message, added: list[NodeAdded]) -> int:
        node = len(self._nodes)
        self._nodes.append(Node(parent, path_digest(self[parent].path, digest)))
        added.append(MessageAdded(node, parent, message))
        return node
