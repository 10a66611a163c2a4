"""An answered request, as the gateway hands it over.

Whether the ids that an engine returned can be relied on, and what they add to the parent's.

Ids that do not add up are never trained on: the exchange says why instead.
"""

import math
import struct
from collections.abc import Sequence
from typing import Protocol

import msgspec

from plimsoll.core.versions import Version
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.packed_tokens import pack_ids, pack_logprobs
from plimsoll.trajectories.records import Finish, Tokens
from plimsoll.trajectories.token_sequence import (
    CommonPrefix,
    TokenSequence,
    ids_of_text,
    text_of_ids,
)

__all__ = [
    "AddedTokens",
    "Done",
    "Ids",
    "ReportedIds",
    "UnreliableIds",
    "added_tokens",
    "check_reported",
]


class Ids(Protocol):
    """The ids that an engine returned, unchanged."""

    @property
    def prompt(self) -> list[int] | msgspec.Raw | None:
        """As JSON where nobody has read it: only what a prompt adds is ever read."""
        ...

    @property
    def answer(self) -> list[int]: ...

    @property
    def logprobs(self) -> list[float] | None: ...


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request."""

    answer: Message
    finish: Finish
    dialect: str
    at: float
    seconds: float
    version: Version
    """The version when the request was sent."""
    versions: Sequence[tuple[Version, int]] = ()
    """Which version generated how many of the answer's ids, in order; none: all by `version`."""
    prompt_tokens: int | None = None
    """What the upstream counted, whether it returned ids or not."""
    answer_tokens: int | None = None
    tokens: Ids | None = None


class UnreliableIds(Exception):
    """Why there are no ids to rely on, in words for a person."""


class ReportedIds(msgspec.Struct, frozen=True):
    """The ids of an exchange, before it is known what they add to another's."""

    ids: Ids
    prompt: bytes
    """As text, the form that lines are compared in."""


class AddedTokens(msgspec.Struct, frozen=True):
    """What an exchange's ids add to those of its parent."""

    tokens: Tokens
    line: TokenSequence
    untrainable: str


def check_reported(done: Done) -> ReportedIds:
    """What the engine returned, where that is all that is needed."""
    ids = done.tokens
    if ids is None:
        raise UnreliableIds("the upstream returned no token ids")
    if ids.prompt is None:
        raise UnreliableIds("the upstream returned no token ids of the prompt")
    _check_count("answer", done.answer_tokens, len(ids.answer))
    try:
        return ReportedIds(ids, text_of_ids(ids.prompt))
    except msgspec.MsgspecError as error:
        raise UnreliableIds(f"the upstream's token ids of the prompt are none: {error}") from error


def added_tokens(
    parent: TokenSequence | None, common: CommonPrefix, reported: ReportedIds, done: Done
) -> AddedTokens:
    """What is new in the ids of an exchange that has `common` with its parent."""
    ids = reported.ids
    added = reported.prompt[common.bytes :]
    try:
        prompt = ids_of_text(added)
        packed, answer = pack_ids(prompt), pack_ids(ids.answer)
    except (msgspec.MsgspecError, struct.error) as error:
        raise UnreliableIds(f"the upstream returned a token id that is none: {error}") from error
    length = common.ids + len(prompt)
    _check_count("prompt", done.prompt_tokens, length)
    versions = _runs(done, len(ids.answer))
    logprobs, untrainable = _logprobs(ids)
    return AddedTokens(
        Tokens(common.ids, packed, answer, logprobs, versions),
        TokenSequence(
            parent, common.bytes, added, text_of_ids(ids.answer), length + len(ids.answer)
        ),
        untrainable,
    )


def _check_count(which: str, counted: int | None, returned: int) -> None:
    if counted is not None and counted != returned:
        raise UnreliableIds(
            f"the upstream counted {counted} tokens in the {which} but returned {returned} ids"
        )


def _runs(done: Done, length: int) -> tuple[tuple[Version, int], ...]:
    """The versions, with neighbours of the same one made one run."""
    runs: list[tuple[Version, int]] = []
    for version, count in done.versions or ((done.version, length),):
        if runs and runs[-1][0] == version:
            runs[-1] = (version, runs[-1][1] + count)
        elif count:
            runs.append((version, count))
    stamped = sum(count for _, count in runs)
    if stamped != length:
        raise UnreliableIds(f"{stamped} tokens carry a version, but the answer has {length} ids")
    return tuple(runs)


def _logprobs(ids: Ids) -> tuple[bytes, str]:
    """Packed; or nothing, and why."""
    logprobs, length = ids.logprobs, len(ids.answer)
    if logprobs is None:
        return b"", "the upstream returned no log probabilities"
    if len(logprobs) != length:
        return b"", (
            f"the upstream returned {len(logprobs)} log probabilities for {length} token ids"
        )
    try:
        packed = pack_logprobs(logprobs)
    except OverflowError:
        packed = b""
    if not math.isfinite(sum(logprobs)) or (length and not packed):
        return b"", "the upstream returned a log probability that is not finite"
    return packed, ""
