"""The branches of a trajectory as people read them: sequences of messages.

An exchange continues its parent's branch if its history extends the parent's, even if the server's
tokens for that history changed (`retokenized`): such a branch has more than one sample. Any other
exchange starts a new branch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from plimsoll.core.errors import UsageError
from plimsoll.trajectories.messages import Message, message_digest
from plimsoll.trajectories.records import Branch, Exchange
from plimsoll.trajectories.trajectory import Trajectory

__all__ = ["Conversation", "ConversationMessage", "choose_branches", "conversations", "main_branch"]


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """A message of a branch, and the exchange that it answers, if that is in this branch."""

    message: Message
    exchange: Exchange | None
    copied: bool
    """Whether it is also in the branch that this one left."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One branch, from its first message to its last answer."""

    number: int
    exchanges: tuple[Exchange, ...]
    messages: tuple[ConversationMessage, ...]
    origin: int | None
    """The branch that it left, if any."""
    shared: int
    """The number of first messages that it shares with the branch it left."""

    @property
    def reason(self) -> Branch:
        """The way in which the branch starts."""
        return self.exchanges[0].branch


def conversations(trajectory: Trajectory) -> list[Conversation]:
    """All branches, in the order of their first exchange."""
    chains: list[list[Exchange]] = []
    branch_of: dict[int, int] = {}
    for exchange in trajectory.exchanges:
        number = branch_of.get(exchange.parent)
        continues_parent = exchange.branch in ("extends", "retokenized")
        if number is None or not continues_parent or chains[number][-1].id != exchange.parent:
            number = len(chains)
            chains.append([])
        chains[number].append(exchange)
        branch_of[exchange.id] = number
    return [_conversation(trajectory, at, chain, branch_of) for at, chain in enumerate(chains)]


def main_branch(branches: Sequence[Conversation]) -> Conversation:
    """The branch with the most answers; the first of several."""
    return max(branches, key=lambda branch: (len(branch.exchanges), -branch.number))


def choose_branches(branches: Sequence[Conversation], number: int | None) -> Sequence[Conversation]:
    """The branch with this number, or all branches."""
    if number is None:
        return branches
    if not 0 <= number < len(branches):
        numbers = f"0 to {len(branches) - 1}" if len(branches) > 1 else "0 alone"
        there = f"its branches are {numbers}" if branches else "it has none"
        raise UsageError(f"the trajectory has no branch {number}: {there}")
    return [branches[number]]


def _conversation(
    trajectory: Trajectory, number: int, chain: list[Exchange], branch_of: Mapping[int, int]
) -> Conversation:
    answers = {exchange.answer: exchange for exchange in chain}
    path = trajectory.path_of(chain[-1])
    origin = branch_of.get(chain[0].parent)
    shared = 0 if origin is None else _shared(trajectory, path, chain[0])
    messages = tuple(
        ConversationMessage(trajectory.message(node), answers.get(node), at < shared)
        for at, node in enumerate(path)
    )
    return Conversation(number, tuple(chain), messages, origin, shared)


def _shared(trajectory: Trajectory, path: list[int], first: Exchange) -> int:
    """The number of messages at the beginning of a path that it shares with the exchange it left.

    Conversations with different tools have separate nodes for equal messages, so content is
    compared.
    """
    left = trajectory.path_of(trajectory.exchanges[first.parent])
    pairs = zip(path, left, strict=False)
    same = takewhile(lambda pair: _same(trajectory, *pair), pairs)
    # A branch's own answer is not shared, even if the text is the same.
    return min(sum(1 for _ in same), path.index(first.answer))


def _same(trajectory: Trajectory, one: int, other: int) -> bool:
    return one == other or message_digest(trajectory.message(one)) == message_digest(
        trajectory.message(other)
    )
