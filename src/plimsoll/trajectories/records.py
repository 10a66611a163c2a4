"""What a trajectory's file holds: JSON lines, each one of these records, told apart by `kind`.

Token ids are little-endian int32, log probabilities little-endian float32, both in base64.
A message is written once, whatever number of exchanges it is part of; an exchange names the
last message of its prompt and its answer, and of its prompt's tokens holds only those that
its parent's do not begin with.
"""

from typing import Literal

import msgspec

from plimsoll.core.versions import Version
from plimsoll.trajectories.messages import Message

__all__ = [
    "FORMAT",
    "Branch",
    "Closed",
    "Exchange",
    "Finish",
    "MessageAdded",
    "Opened",
    "Record",
    "Tokens",
    "ToolsAdded",
    "Trouble",
]

FORMAT = 1

Branch = Literal["start", "extends", "again", "rewritten", "retokenized"]
"""How an exchange follows its parent.

start        the first of its conversation: it shares no message with an earlier exchange
extends      its history is the parent's history and answer, and more; so are its tokens
again        the same prompt as an earlier exchange's: a second answer to it
rewritten    the agent has changed history: compaction, a sub-agent, an edited message
retokenized  the messages extend the parent's, but the engine's tokens for them do not
"""

Finish = Literal["stop", "length", "tool_calls", "refused"]


class Opened(msgspec.Struct, frozen=True, tag_field="kind", tag="opened", omit_defaults=True):
    """The first record."""

    session: str
    started: float
    about: dict[str, str] = {}
    """What the session belongs to: run, task, attempt, agent, model."""
    format: int = FORMAT


class ToolsAdded(msgspec.Struct, frozen=True, tag_field="kind", tag="tools"):
    """The tools of a conversation, as the policy is told of them; they stand before messages."""

    id: int
    tools: msgspec.Raw


class MessageAdded(msgspec.Struct, frozen=True, tag_field="kind", tag="message"):
    """A message, and what it follows: a message, a set of tools, or nothing (-1)."""

    id: int
    parent: int
    message: Message


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of an exchange, as the engine returned them."""

    kept: int
    """How many of the parent's tokens (its prompt and answer) this prompt begins with."""
    prompt: bytes
    """The ids of the prompt after those."""
    answer: bytes
    """The ids that the policy generated."""
    logprobs: bytes = b""
    """One for each id of the answer; empty where the engine gave none."""
    versions: tuple[tuple[Version, int], ...] = ()
    """Which version generated how many of the answer's ids, in order."""


class Exchange(msgspec.Struct, frozen=True, tag_field="kind", tag="exchange", omit_defaults=True):
    """A request that was answered."""

    id: int
    parent: int
    """The exchange that it follows or shares most with; -1 where there is none."""
    branch: Branch
    prompt: int
    """The last message of the prompt."""
    answer: int
    """The message that answers it."""
    dialect: str
    finish: Finish
    at: float
    """Seconds since the epoch when the answer was complete."""
    seconds: float
    version: Version
    """The version when the request was sent."""
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    tokens: Tokens | None = None
    """None where the engine returned no ids: such an exchange cannot be trained on."""
    untrainable: str = ""
    """Why not, where it cannot be."""


class Trouble(msgspec.Struct, frozen=True, tag_field="kind", tag="trouble", omit_defaults=True):
    """A request that was not answered as it was asked, or a limit that was crossed."""

    at: float
    what: str
    """One word: bad_request, too_large, too_many, budget, cancelled, timeout, upstream, garbage."""
    detail: str
    dialect: str = ""


class Closed(msgspec.Struct, frozen=True, tag_field="kind", tag="closed", omit_defaults=True):
    """The last record. `digest` is the SHA-256 of all lines before it, uncompressed."""

    ending: str
    exchanges: int
    records: int
    digest: str
    detail: str = ""


Record = Opened | ToolsAdded | MessageAdded | Exchange | Trouble | Closed
