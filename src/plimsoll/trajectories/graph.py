"""The exchange graph: which exchange follows which in the conversations of one session.

An exchange follows, in order of preference:

* the exchange with the same prompt: a second answer to it (`again`);
* the exchange whose prompt and answer are the longest prefix of its prompt (`extends`, or
  `retokenized` if the server's tokens differ);
* the first exchange that shares the most messages with it (`rewritten`);
* none (`start`).

Among equal candidates it follows the one that shares the most tokens, and among those the latest.
The parent is chosen when the answer is complete, so that requests in flight at the same time find
each other in any order.
"""

import msgspec

from plimsoll.trajectories.message_tree import (
    ROOT,
    History,
    NodeAdded,
    Place,
    Tree,
)
from plimsoll.trajectories.records import Branch, Exchange
from plimsoll.trajectories.reported_tokens import (
    AddedTokens,
    Done,
    ReportedIds,
    UnreliableIds,
    added_tokens,
    check_reported,
)
from plimsoll.trajectories.token_sequence import CommonPrefix, TokenSequence

__all__ = ["Added", "Done", "Graph", "History", "Place"]

Added = NodeAdded | Exchange
_NONE = -1


class Graph:
    """The conversations of one session: digests and token ids, no text."""

    def __init__(self) -> None:
        self._tree = Tree()
        self._firsts: dict[bytes, int] = {}
        """The first exchange of each message path, by path digest, independent of tools."""
        self._lines: list[TokenSequence | None] = []
        """The ids of each exchange, if they are reliable."""

    @property
    def exchanges(self) -> int:
        return len(self._lines)

    def place(self, history: History, tools: msgspec.Raw | None) -> Place:
        """Locate a request in the graph. Others see no change before `commit`."""
        return self._tree.place(history, tools)

    def commit(self, place: Place, done: Done) -> tuple[Added, ...]:
        """Add an exchange, and return the new records; the exchange is the last of them."""
        nodes: list[NodeAdded] = []
        prompt = self._tree.add(place, nodes)
        exchange = len(self._lines)
        parent, branch, addition, untrainable = self._follow(prompt, done)
        answer = self._tree.add_answer(prompt, done.answer, exchange, nodes)
        self._lines.append(addition.line if addition is not None else None)
        self._claim(answer, exchange)
        return (
            *nodes,
            Exchange(
                id=exchange,
                parent=parent,
                branch=branch,
                prompt=prompt,
                answer=answer,
                dialect=done.dialect,
                finish=done.finish,
                at=done.at,
                seconds=done.seconds,
                version=done.version,
                prompt_tokens=done.prompt_tokens,
                answer_tokens=done.answer_tokens,
                tokens=addition.tokens if addition is not None else None,
                untrainable=untrainable,
            ),
        )

    def _follow(self, prompt: int, done: Done) -> tuple[int, Branch, AddedTokens | None, str]:
        try:
            reported = check_reported(done)
        except UnreliableIds as why:
            parent, branch = self._parent(prompt, None)
            return parent, branch, None, str(why)
        parent, branch = self._parent(prompt, reported)
        line = self._lines[parent] if parent != _NONE else None
        common = line.common(reported.prompt) if line is not None else CommonPrefix()
        if branch == "extends" and line is not None and common.ids < len(line):
            branch = "retokenized"
        try:
            addition = added_tokens(line, common, reported, done)
        except UnreliableIds as why:
            return parent, branch, None, str(why)
        return parent, branch, addition, addition.untrainable

    def _parent(self, prompt: int, reported: ReportedIds | None) -> tuple[int, Branch]:
        """The parent of an exchange with this prompt, by messages alone."""
        twins = self._tree[prompt].prompted
        if twins:
            return self._closest(twins, reported), "again"
        node = prompt
        while node != ROOT:
            found = self._tree[node]
            if found.answered:
                return self._closest(found.answered, reported), "extends"
            node = found.parent
        node = prompt
        while node != ROOT:
            found = self._tree[node]
            first = self._firsts.get(found.path)
            if first is not None:
                return first, "rewritten"
            node = found.parent
        return _NONE, "start"

    def _closest(self, exchanges: list[int], reported: ReportedIds | None) -> int:
        best, most = exchanges[-1], -1
        if len(exchanges) == 1 or reported is None:
            return best
        for exchange in reversed(exchanges):
            line = self._lines[exchange]
            if line is None:
                continue
            common = line.common(reported.prompt).bytes
            if common > most:
                best, most = exchange, common
            if common == len(reported.prompt):
                break
        return best

    def _claim(self, answer: int, exchange: int) -> None:
        """Register the exchange as the first of every new message up to its answer."""
        node = answer
        while node != ROOT:
            found = self._tree[node]
            if found.path in self._firsts or not found.path:
                return
            self._firsts[found.path] = exchange
            node = found.parent
