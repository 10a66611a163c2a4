"""The wire form of answers, that of vLLM: with token ids, log probabilities and versions."""

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.core.versions import Version

__all__ = ["Wants", "answer_head", "error_body", "token_fields", "usage_of"]


@dataclass(frozen=True, slots=True)
class Wants:
    """What a request wants besides the text."""

    ids: bool = True
    logprobs: bool = True


def answer_head(kind: str, id: str, model: str, created: int) -> dict[str, object]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": created, "model": model}


def usage_of(prompt: int, answer: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }


def token_fields(
    wants: Wants,
    finish: str | None,
    ids: list[int],
    logprobs: list[float],
    words: Sequence[str],
    versions: Sequence[tuple[Version, int]] = (),
) -> dict[str, object]:
    """What a choice says of its tokens and its end, in the order in which engines write it.

    `token_versions` is there where it is known what generated each.
    """
    fields: dict[str, object] = {}
    if wants.logprobs:
        entries = zip(words, logprobs, strict=True)
        fields["logprobs"] = {"content": [_entry(word, value) for word, value in entries]}
    fields["finish_reason"] = finish
    if wants.ids:
        fields["token_ids"] = ids
        if versions:
            fields["token_versions"] = [(str(version), count) for version, count in versions]
    return fields


def error_body(status: int, message: str) -> dict[str, object]:
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return {"error": {"message": message, "type": kind, "code": status}}


def _entry(word: str, value: float) -> dict[str, object]:
    return {
        "token": word,
        "logprob": value,
        "bytes": list(word.encode("utf-8", "replace")),
        "top_logprobs": [],
    }
