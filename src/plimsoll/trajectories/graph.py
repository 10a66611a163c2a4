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
    Position,
    Tree,
)
from plimsoll.trajectories.records import Branch, Exchange
from plimsoll.trajectories.reported_tokens import (
    AddedTokens,
    AnsweredRequest,
    ReportedIds,
    UnreliableIds,
    added_tokens,
    check_reported,
)
from plimsoll.trajectories.token_sequence import CommonPrefix, TokenSequence

__all__ = ["Added", "Graph"]

Added = NodeAdded | Exchange
_NONE = -1


class Graph:
    """The conversations of one session: digests and token ids, no text."""

    def __init__(self) -> None:
        self._tree = Tree()
        self._first_exchanges: dict[bytes, int] = {}
        """The first exchange of each message path, by path digest, independent of tools."""
        self._sequences: list[TokenSequence | None] = []
        """The ids of each exchange, if they are reliable."""

    @property
    def exchanges(self) -> int:
        return len(self._sequences)

    def locate(self, history: History, tools: msgspec.Raw | None) -> Position:
        """Locate a request in the graph. Others see no change before `commit`."""
        return self._tree.locate(history, tools)

    def commit(self, position: Position, answered: AnsweredRequest) -> tuple[Added, ...]:
        """Add an exchange, and return the new records; the exchange is the last of them."""
        nodes: list[NodeAdded] = []
        prompt = self._tree.add(position, nodes)
        exchange = len(self._sequences)
        parent, branch, added, untrainable = self._follow(prompt, answered)
        answer = self._tree.add_answer(prompt, answered.answer, exchange, nodes)
        self._sequences.append(added.sequence if added is not None else None)
        self._register_first(answer, exchange)
        return (
            *nodes,
            Exchange(
                id=exchange,
                parent=parent,
                branch=branch,
                prompt=prompt,
                answer=answer,
                dialect=answered.dialect,
                finish=answered.finish,
                at=answered.at,
                seconds=answered.seconds,
                version=answered.version,
                prompt_tokens=answered.prompt_tokens,
                answer_tokens=answered.answer_tokens,
                tokens=added.tokens if added is not None else None,
                untrainable=untrainable,
            ),
        )

    def _follow(
        self, prompt: int, answered: AnsweredRequest
    ) -> tuple[int, Branch, AddedTokens | None, str]:
        try:
            reported = check_reported(answered)
        except UnreliableIds as why:
            parent, branch = self._parent(prompt, None)
            return parent, branch, None, str(why)
        parent, branch = self._parent(prompt, reported)
        sequence = self._sequences[parent] if parent != _NONE else None
        common = sequence.common(reported.prompt) if sequence is not None else CommonPrefix()
        if branch == "extends" and sequence is not None and common.ids < len(sequence):
            branch = "retokenized"
        try:
            added = added_tokens(sequence, common, reported, answered)
        except UnreliableIds as why:
            return parent, branch, None, str(why)
        return parent, branch, added, added.untrainable

    def _parent(self, prompt: int, reported: ReportedIds | None) -> tuple[int, Branch]:
        """The parent of an exchange with this prompt, by messages alone."""
        same_prompt = self._tree[prompt].prompted
        if same_prompt:
            return self._closest(same_prompt, reported), "again"
        node = prompt
        while node != ROOT:
            found = self._tree[node]
            if found.answered:
                return self._closest(found.answered, reported), "extends"
            node = found.parent
        node = prompt
        while node != ROOT:
            found = self._tree[node]
            first = self._first_exchanges.get(found.path)
            if first is not None:
                return first, "rewritten"
            node = found.parent
        return _NONE, "start"

    def _closest(self, exchanges: list[int], reported: ReportedIds | None) -> int:
        best, most = exchanges[-1], -1
        if len(exchanges) == 1 or reported is None:
            return best
        for exchange in reversed(exchanges):
            sequence = self._sequences[exchange]
            if sequence is None:
                continue
            common = sequence.common(reported.prompt).bytes
            if common > most:
                best, most = exchange, common
            if common == len(reported.prompt):
                break
        return best

    def _register_first(self, answer: int, exchange: int) -> None:
        """Register the exchange as the first of every new message up to its answer."""
        node = answer
        while node != ROOT:
            found = self._tree[node]
            if found.path in self._first_exchanges or not found.path:
                return
            self._first_exchanges[found.path] = exchange
            node = found.parent
