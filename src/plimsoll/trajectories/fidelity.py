"""Whether the ids that an engine returned can be relied on, and what they add to the parent's.

Ids that do not add up are never trained on: the exchange says why instead.
"""

import math
import struct

import msgspec

from plimsoll.core.versions import Version
from plimsoll.trajectories.done import Done, Ids
from plimsoll.trajectories.lines import Common, Line, ids_of_text, text_of_ids
from plimsoll.trajectories.records import Tokens
from plimsoll.trajectories.tokens import pack_ids, pack_logprobs

__all__ = ["Addition", "Reported", "Unreliable", "add_to", "report"]


class Unreliable(Exception):
    """Why there are no ids to rely on, in words for a person."""


class Reported(msgspec.Struct, frozen=True):
    """The ids of an exchange, before it is known what they add to another's."""

    ids: Ids
    prompt: bytes
    """As text, the form that lines are compared in."""


class Addition(msgspec.Struct, frozen=True):
    """What an exchange's ids add to those of its parent."""

    tokens: Tokens
    line: Line
    untrainable: str


def report(done: Done) -> Reported:
    """What the engine returned, where that is all that is needed."""
    ids = done.tokens
    if ids is None:
        raise Unreliable("the upstream returned no token ids")
    if ids.prompt is None:
        raise Unreliable("the upstream returned no token ids of the prompt")
    _check_count("answer", done.answer_tokens, len(ids.answer))
    try:
        return Reported(ids, text_of_ids(ids.prompt))
    except msgspec.MsgspecError as error:
        raise Unreliable(f"the upstream's token ids of the prompt are none: {error}") from error


def add_to(parent: Line | None, common: Common, reported: Reported, done: Done) -> Addition:
    """What is new in the ids of an exchange that has `common` with its parent."""
    ids = reported.ids
    added = reported.prompt[common.bytes :]
    try:
        prompt = ids_of_text(added)
        packed, answer = pack_ids(prompt), pack_ids(ids.answer)
    except (msgspec.MsgspecError, struct.error) as error:
        raise Unreliable(f"the upstream returned a token id that is none: {error}") from error
    length = common.ids + len(prompt)
    _check_count("prompt", done.prompt_tokens, length)
    versions = _runs(done, len(ids.answer))
    logprobs, untrainable = _logprobs(ids)
    return Addition(
        Tokens(common.ids, packed, answer, logprobs, versions),
        Line(parent, common.bytes, added, text_of_ids(ids.answer), length + len(ids.answer)),
        untrainable,
    )


def _check_count(which: str, counted: int | None, returned: int) -> None:
    if counted is not None and counted != returned:
        raise Unreliable(
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
        raise Unreliable(f"{stamped} tokens carry a version, but the answer has {length} ids")
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
