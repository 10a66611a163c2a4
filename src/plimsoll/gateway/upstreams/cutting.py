"""What is heavy in an answer, cut out before anything else is read.

The ids of the prompt are as long as the prompt, and of a conversation that goes on nearly all of
them are known. Log probabilities are longer than the answer by far. Scanning over them costs more
than the rest of an exchange, so it is done once, or not at all.
"""

from dataclasses import dataclass

import msgspec

__all__ = ["Cut", "cut", "cut_ids"]

_IDS = b'"prompt_token_ids":'
_LOGPROBS = b'"logprobs":{"content":['
_AFTER = b']},"finish_reason":'


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts of an answer. What was cut out of its data stands there as null."""

    data: bytes
    prompt_ids: msgspec.Raw | None = None
    logprobs: msgspec.Raw | None = None


def cut(data: bytes) -> Cut:
    """Names are looked for as bytes. They cannot be a part of a text: quotes are escaped there.
    What is not written as engines write it stays where it is."""
    data, prompt_ids = cut_ids(data)
    start = data.find(_LOGPROBS)
    end = data.find(_AFTER, start) if start >= 0 else -1
    if end < 0:
        return Cut(data, prompt_ids)
    start += len(b'"logprobs":')
    end += len(b"]}")
    logprobs = msgspec.Raw(data[start:end])
    return Cut(b"".join((data[:start], b"null", data[end:])), prompt_ids, logprobs)


def cut_ids(data: bytes) -> tuple[bytes, msgspec.Raw | None]:
    """An answer, or a piece of one, without the ids of the prompt; and they."""
    start = data.find(_IDS)
    if start < 0:
        return data, None
    start += len(_IDS)
    while data[start : start + 1] == b" ":
        start += 1
    # An array of numbers ends with its first bracket.
    end = data.find(b"]", start) + 1
    if data[start : start + 1] != b"[" or not end:
        return data, None
    return b"".join((data[:start], b"null", data[end:])), msgspec.Raw(data[start:end])
