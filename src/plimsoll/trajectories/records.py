"""The records of a trajectory file: JSON lines, distinguished by `kind`.

Token ids are little-endian int32, log probabilities little-endian float32, both in base64. A
message is written once, however many exchanges contain it. An exchange refers to the last message
of its prompt and to its answer, and holds only the prompt tokens that its parent does not have.
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
"""The relation of an exchange to its parent.

start        begins a conversation: it shares no message with an earlier exchange
extends      its history and tokens extend the parent's history and answer
again        the same prompt as an earlier exchange's: a second answer to it
rewritten    the agent changed the history: compaction, a sub-agent, an edited message
retokenized  the messages extend the parent's, but the server's tokens do not
"""

Finish = Literal["stop", "length", "tool_calls", "refused"]


class Opened(msgspec.Struct, frozen=True, tag_field="kind", tag="opened", omit_defaults=True):
    """The first record."""

    session: str
    started: float
    about: dict[str, str] = {}
    """The session's context: run, task, attempt, agent, model."""
    format: int = FORMAT


class ToolsAdded(msgspec.Struct, frozen=True, tag_field="kind", tag="tools"):
    """The tools of a conversation, in the form sent to the policy; they precede its messages."""

    id: int
    tools: msgspec.Raw


class MessageAdded(msgspec.Struct, frozen=True, tag_field="kind", tag="message"):
    """A message and its parent: a message, a set of tools, or none (-1)."""

    id: int
    parent: int
    message: Message


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of an exchange, as the inference server returned them."""

    kept: int
    """The number of the parent's tokens (prompt and answer) that this prompt begins with."""
    prompt: bytes
    """The ids of the prompt after those."""
    answer: bytes
    """The generated ids."""
    logprobs: bytes = b""
    """One for each id of the answer; empty if the server returned none."""
    versions: tuple[tuple[Version, int], ...] = ()
    """Runs of (version, number of the answer's ids), in order."""


class Exchange(msgspec.Struct, frozen=True, tag_field="kind", tag="exchange", omit_defaults=True):
    """An answered request."""

    id: int
    parent: int
    """The exchange that it follows or shares the most messages with; -1 if there is none."""
    branch: Branch
    prompt: int
    """The last message of the prompt."""
    answer: int
    """The message of the answer."""
    dialect: str
    finish: Finish
    at: float
    """The time when the answer was complete, in seconds since the epoch."""
    seconds: float
    version: Version
    """The version when the request was sent."""
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    tokens: Tokens | None = None
    """None if the server returned no ids: such an exchange cannot be trained on."""
    untrainable: str = ""
    """The reason why it cannot be trained on, if so."""


class Trouble(msgspec.Struct, frozen=True, tag_field="kind", tag="trouble", omit_defaults=True):
    """A request that was refused or failed, or a limit that was reached."""

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
