"""Answered requests, and the token ids that the inference server reported for them.

Ids that do not add up are never trained on: the exchange records the reason instead.
"""

import math
import struct
from collections.abc import Sequence

import msgspec

from plimsoll.core.versions import Version
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.records import Finish, Tokens
from plimsoll.trajectories.token_sequence import (
    CommonPrefix,
    TokenSequence,
    ids_of_text,
    pack_ids,
    pack_logprobs,
    text_of_ids,
)

__all__ = [
    "AddedTokens",
    "AnsweredRequest",
    "ReportedIds",
    "TokenIds",
    "UnreliableIds",
    "added_tokens",
    "check_reported",
]


class TokenIds(msgspec.Struct, frozen=True):
    """Token ids exactly as the inference server returned them."""

    prompt: list[int] | msgspec.Raw | None
    """Raw JSON as long as it is not parsed: only the added part of a prompt is ever parsed."""
    answer: list[int]
    logprobs: list[float] | None
    versions: tuple[tuple[Version, int], ...] = ()
    """Runs of (version, number of tokens), if the upstream reports them."""


class AnsweredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An answered request, as the gateway hands it to the recorder."""

    answer: Message
    finish: Finish
    dialect: str
    at: float
    seconds: float
    version: Version
    """The version when the request was sent."""
    versions: Sequence[tuple[Version, int]] = ()
    """Runs of (version, number of the answer's ids), in order; empty: all by `version`."""
    prompt_tokens: int | None = None
    """The count of the upstream, with or without ids."""
    answer_tokens: int | None = None
    tokens: TokenIds | None = None


class UnreliableIds(Exception):
    """The reason why the ids cannot be trusted, for a person to read."""


class ReportedIds(msgspec.Struct, frozen=True):
    """The ids of an exchange, before its parent is known."""

    ids: TokenIds
    prompt: bytes
    """The prompt's ids as text, the form in which sequences are compared."""


class AddedTokens(msgspec.Struct, frozen=True):
    """The ids that an exchange adds to those of its parent."""

    tokens: Tokens
    sequence: TokenSequence
    untrainable: str


def check_reported(answered: AnsweredRequest) -> ReportedIds:
    """The reported ids. Raises `UnreliableIds` if they are missing or do not match the counts."""
    ids = answered.tokens
    if ids is None:
        raise UnreliableIds("the upstream returned no token ids")
    if ids.prompt is None:
        raise UnreliableIds("the upstream returned no token ids of the prompt")
    _check_count("answer", answered.answer_tokens, len(ids.answer))
    try:
        return ReportedIds(ids, text_of_ids(ids.prompt))
    except msgspec.MsgspecError as error:
        raise UnreliableIds(
            f"the upstream's token ids of the prompt are invalid: {error}"
        ) from error


def added_tokens(
    parent: TokenSequence | None,
    common: CommonPrefix,
    reported: ReportedIds,
    answered: AnsweredRequest,
) -> AddedTokens:
    """The ids of an exchange after the prefix that it shares with its parent."""
    ids = reported.ids
    added = reported.prompt[common.bytes :]
    try:
        prompt = ids_of_text(added)
        packed, answer = pack_ids(prompt), pack_ids(ids.answer)
    except (msgspec.MsgspecError, struct.error) as error:
        raise UnreliableIds(f"the upstream returned an invalid token id: {error}") from error
    length = common.ids + len(prompt)
    _check_count("prompt", answered.prompt_tokens, length)
    versions = _runs(answered, len(ids.answer))
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


def _runs(answered: AnsweredRequest, length: int) -> tuple[tuple[Version, int], ...]:
    """The versions, with adjacent runs of the same version merged."""
    runs: list[tuple[Version, int]] = []
    for version, count in answered.versions or ((answered.version, length),):
        if runs and runs[-1][0] == version:
            runs[-1] = (version, runs[-1][1] + count)
        elif count:
            runs.append((version, count))
    versioned = sum(count for _, count in runs)
    if versioned != length:
        raise UnreliableIds(f"{versioned} tokens carry a version, but the answer has {length} ids")
    return tuple(runs)


def _logprobs(ids: TokenIds) -> tuple[bytes, str]:
    """The packed log probabilities, or the reason why there are none."""
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
