"""The branches of a trajectory as a person reads them: lines of messages.

An exchange goes on with its parent's line where its history is the parent's and more, even
where the engine's tokens for that history are others (`retokenized`): then the line has more
than one sample. Whatever else an exchange does to history starts a line of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from plimsoll.core.errors import UsageError
from plimsoll.trajectories.messages import Message, message_digest
from plimsoll.trajectories.records import Branch, Exchange
from plimsoll.trajectories.trajectory_file import Trajectory

__all__ = ["Conversation", "ConversationMessage", "choose_branches", "conversations", "main_branch"]


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """A message of a conversation, and the exchange that it answers, where it is of this line."""

    message: Message
    exchange: Exchange | None
    copied: bool
    """It stands in the branch that this one left, too."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One branch, from its first message to its last answer."""

    number: int
    exchanges: tuple[Exchange, ...]
    said: tuple[ConversationMessage, ...]
    origin: int | None
    """The branch that it left, where it left one."""
    shared: int
    """How many of its first messages are those of the branch that it left."""

    @property
    def reason(self) -> Branch:
        """Why it starts."""
        return self.exchanges[0].branch


def conversations(trajectory: Trajectory) -> list[Conversation]:
    """Every branch, in the order in which they start."""
    lines: list[list[Exchange]] = []
    line_of: dict[int, int] = {}
    for exchange in trajectory.exchanges:
        number = line_of.get(exchange.parent)
        goes_on = exchange.branch in ("extends", "retokenized")
        if number is None or not goes_on or lines[number][-1].id != exchange.parent:
            number = len(lines)
            lines.append([])
        lines[number].append(exchange)
        line_of[exchange.id] = number
    return [_conversation(trajectory, at, line, line_of) for at, line in enumerate(lines)]


def main_branch(branches: Sequence[Conversation]) -> Conversation:
    """The branch with the most answers; the first of several."""
    return max(branches, key=lambda branch: (len(branch.exchanges), -branch.number))


def choose_branches(branches: Sequence[Conversation], number: int | None) -> Sequence[Conversation]:
    """The branch of a number, or all of them."""
    if number is None:
        return branches
    if not 0 <= number < len(branches):
        numbers = f"0 to {len(branches) - 1}" if len(branches) > 1 else "0 alone"
        there = f"its branches are {numbers}" if branches else "it has none"
        raise UsageError(f"the trajectory has no branch {number}: {there}")
    return [branches[number]]


def _conversation(
    trajectory: Trajectory, number: int, line: list[Exchange], line_of: Mapping[int, int]
) -> Conversation:
    answers = {exchange.answer: exchange for exchange in line}
    path = trajectory.path_of(line[-1])
    origin = line_of.get(line[0].parent)
    shared = 0 if origin is None else _shared(trajectory, path, line[0])
    said = tuple(
        ConversationMessage(trajectory.message(node), answers.get(node), at < shared)
        for at, node in enumerate(path)
    )
    return Conversation(number, tuple(line), said, origin, shared)


def _shared(trajectory: Trajectory, path: list[int], first: Exchange) -> int:
    """How many messages at the beginning of a path are those of the exchange that it left.

    Conversations with other tools have messages of their own that say the same.
    """
    left = trajectory.path_of(trajectory.exchanges[first.parent])
    pairs = zip(path, left, strict=False)
    same = takewhile(lambda pair: _same(trajectory, *pair), pairs)
    # An answer of its own is never another's, even where it says the same.
    return min(sum(1 for _ in same), path.index(first.answer))


def _same(trajectory: Trajectory, one: int, other: int) -> bool:
    return one == other or message_digest(trajectory.message(one)) == message_digest(
        trajectory.message(other)
    )
