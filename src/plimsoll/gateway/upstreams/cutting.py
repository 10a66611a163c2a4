"""What is heavy in an answer, cut out before anything else is read.

The ids of the prompt are as long as the prompt, and of a conversation that goes on nearly all of
them are known. Log probabilities are longer than the answer by far. Scanning over them costs more
than the rest of an exchange, so it is done once, or not at all.
"""

import msgspec

__all__ = ["Cut", "cut", "cut_ids"]

_IDS = b'"prompt_token_ids":'
_LOGPROBS = b'"logprobs":{"content":['
_AFTER = b']},"finish_reason":'


class Cut(msgspec.Struct, frozen=True):
    """The parts of an answer. What was cut out of its data stands there as null."""

    data: bytes
    prompt_ids: msgspec.Raw | None = None
    logprobs: msgspec.Raw | None = None


def cut(data: bytes) -> Cut:
    """Names are looked for as bytes. They cannot be a part of a text: quotes are escaped there.
    What is not written as engines write it stays where it is."""
    data, prompt_ids = _cut_last_ids(data) or cut_ids(data)
    start = data.find(_LOGPROBS)
    # From the end, which is near: of an answer little comes after them.
    end = data.rfind(_AFTER, start) if start >= 0 else -1
    if end < 0:
        return Cut(data, prompt_ids)
    data, logprobs = _cut_out(data, start + len(b'"logprobs":'), end + len(b"]}"))
    return Cut(data, prompt_ids, logprobs)


def cut_ids(data: bytes) -> tuple[bytes, msgspec.Raw | None]:
    """An answer, or a piece of one, without the ids of the prompt; and they.

    They stand at the top or in the choice; some servers write null in the other place.
    """
    at = data.find(_IDS)
    while at >= 0:
        start = at + len(_IDS)
        while data[start : start + 1] == b" ":
            start += 1
        # An array of numbers ends with its first bracket.
        end = data.find(b"]", start) + 1
        if end and data.rfind(b"[", start, end) == start:
            return _cut_out(data, start, end)
        at = data.find(_IDS, start)
    return data, None


def _cut_last_ids(data: bytes) -> tuple[bytes, msgspec.Raw] | None:
    """The same where no array comes after them: single bytes are found many times as fast."""
    end = data.rfind(b"]")
    start = data.rfind(b"[", 0, max(end, 0))
    found = start >= 0 and data.endswith(_IDS, 0, start)
    return _cut_out(data, start, end + 1) if found else None


def _cut_out(data: bytes, start: int, end: int) -> tuple[bytes, msgspec.Raw]:
    view = memoryview(data)
    return b"".join((view[:start], b"null", view[end:])), msgspec.Raw(view[start:end])
