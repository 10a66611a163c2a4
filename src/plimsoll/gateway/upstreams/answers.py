"""Parses the answers of an OpenAI-compatible server: whole ones, and the pieces of streams.

Two corrections happen on the way:

* Tool calls without an id get one, because agents need it to name the call of a result.
* The token ids of the prompt and the log probabilities are cut out before parsing. The ids are as
  long as the prompt, and mostly known from the previous turn; the log probabilities are much longer
  than the answer. Parsing them would cost more than the rest of an exchange, so it is done once or
  not at all.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from plimsoll.core.ids import short_id
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.core.versions import Version
from plimsoll.gateway.completions import (
    Answer,
    CallDelta,
    Chunk,
    Usage,
)
from plimsoll.gateway.upstreams.answer_fields import (
    Choice,
    ChunkBody,
    ChunkChoice,
    Logprobs,
    LogprobValues,
    MessageFields,
    UsageFields,
    WholeBody,
    WireCall,
)
from plimsoll.gateway.upstreams.failures import UpstreamFailure, failure_from_event, invalid_answer
from plimsoll.trajectories.messages import Message, Text, ToolCall
from plimsoll.trajectories.records import Finish
from plimsoll.trajectories.reported_tokens import TokenIds

__all__ = [
    "CutAnswer",
    "StreamReader",
    "cut_answer",
    "cut_prompt_ids",
    "new_call_id",
    "read_answer",
    "with_call_ids",
]

_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def new_call_id() -> str:
    return f"call_{short_id()}"


def with_stream_call_ids(data: bytes, ids: Sequence[str]) -> bytes:
    """A piece of a stream with these ids in its tool calls; an empty id is left out."""
    body = _object.decode(data)
    body["choices"] = with_call_ids(body["choices"], "delta", ids)
    return msgspec.json.encode(body)


def with_call_ids(
    choices: msgspec.Raw, container: Literal["message", "delta"], ids: Sequence[str]
) -> msgspec.Raw:
    """The choices of an answer, with these ids in the tool calls of the first choice."""
    listed = _list.decode(choices)
    message = _object.decode(listed[0][container])
    calls = _list.decode(message["tool_calls"])
    for call, id in zip(calls, ids, strict=True):
        if id:
            call["id"] = _raw(id)
    message["tool_calls"] = _raw(calls)
    listed[0][container] = _raw(message)
    return _raw(listed)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_IDS = b'"prompt_token_ids":'
_LOGPROBS = b'"logprobs":{"content":['
_AFTER = b']},"finish_reason":'


class CutAnswer(msgspec.Struct, frozen=True):
    """The parts of an answer. In `data`, the removed parts are replaced by null."""

    data: bytes
    prompt_ids: msgspec.Raw | None = None
    logprobs: msgspec.Raw | None = None


def cut_answer(data: bytes) -> CutAnswer:
    """Cut the prompt's ids and the log probabilities out of an answer.

    The field names are searched as bytes. They cannot be part of a text, where quotes are escaped.
    Fields in an unusual layout stay in place.
    """
    data, prompt_ids = _cut_last_array(data) or cut_prompt_ids(data)
    start = data.find(_LOGPROBS)
    # Search from the end: little follows the log probabilities.
    end = data.rfind(_AFTER, start) if start >= 0 else -1
    if end < 0:
        return CutAnswer(data, prompt_ids)
    data, logprobs = _cut_out(data, start + len(b'"logprobs":'), end + len(b"]}"))
    return CutAnswer(data, prompt_ids, logprobs)


def cut_prompt_ids(data: bytes) -> tuple[bytes, msgspec.Raw | None]:
    """An answer, or a piece of one, without the token ids of the prompt; and the ids.

    They are at the top level or in the choice; some servers write null in the other place.
    """
    at = data.find(_IDS)
    while at >= 0:
        start = at + len(_IDS)
        while data[start : start + 1] == b" ":
            start += 1
        # An array of numbers ends at the first bracket.
        end = data.find(b"]", start) + 1
        if end and data.rfind(b"[", start, end) == start:
            return _cut_out(data, start, end)
        at = data.find(_IDS, start)
    return data, None


def _cut_last_array(data: bytes) -> tuple[bytes, msgspec.Raw] | None:
    """Like `cut_prompt_ids`, if the ids are the last array: searching for single bytes is much
    faster."""
    end = data.rfind(b"]")
    start = data.rfind(b"[", 0, max(end, 0))
    found = start >= 0 and data.endswith(_IDS, 0, start)
    return _cut_out(data, start, end + 1) if found else None


def _cut_out(data: bytes, start: int, end: int) -> tuple[bytes, msgspec.Raw]:
    view = memoryview(data)
    return b"".join((view[:start], b"null", view[end:])), msgspec.Raw(view[start:end])


FINISHES: dict[str, Finish] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}
"""All other reasons mean `stop`."""

BROKEN = ("abort", "error")
"""The server gave up: the generated text is not an answer."""

_whole = msgspec.json.Decoder(WholeBody)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_logprobs = msgspec.json.Decoder(Logprobs)
_values = msgspec.json.Decoder(LogprobValues)
_chunk = msgspec.json.Decoder(ChunkBody)

_NULL = msgspec.Raw(b"null")
_SEVERAL = "it has several choices, but one was requested"


def read_answer(where: str, data: bytes) -> Answer:
    """Parse a whole answer. Raises `UpstreamFailure` if it is invalid."""
    try:
        return _read(where, cut_answer(data))
    except DECODE_ERRORS:
        pass  # the cut may have gone wrong
    try:
        return _read(where, CutAnswer(data))
    except DECODE_ERRORS as error:
        raise invalid_answer(where, str(error)) from error


def _read(where: str, parts: CutAnswer) -> Answer:
    body = _whole.decode(parts.data)
    raw = _fields.decode(parts.data)
    if not body.choices:
        raise _no_choices(where, raw)
    return _answer(where, raw, body, parts)


def _answer(where: str, raw: dict[str, msgspec.Raw], body: WholeBody, parts: CutAnswer) -> Answer:
    choice = body.choices[0]
    if choice.index or len(body.choices) > 1:
        raise invalid_answer(where, _SEVERAL)
    message_fields = choice.message
    if choice.finish_reason is None:
        raise invalid_answer(where, "it has no finish_reason")
    text = message_fields.content or message_fields.refusal or ""
    calls = tuple(_call(where, call) for call in message_fields.tool_calls or ())
    if not all(call.id for call in message_fields.tool_calls or ()):
        raw["choices"] = with_call_ids(raw["choices"], "message", [call.id for call in calls])
    return Answer(
        id=body.id or "",
        message=Message(
            role="assistant",
            parts=(Text(text),) if text else (),
            reasoning=message_fields.reasoning or message_fields.reasoning_content or "",
            calls=calls,
        ),
        finish=_finish(where, choice.finish_reason),
        usage=_usage(body.usage),
        tokens=_tokens(where, parts.prompt_ids or _prompt_ids(raw, choice), choice, parts.logprobs),
        raw=raw,
        logprobs=parts.logprobs,
    )


def _no_choices(where: str, raw: dict[str, msgspec.Raw]) -> UpstreamFailure:
    if "error" in raw:
        return failure_from_event(where, bytes(raw["error"]))
    return invalid_answer(where, "it has no choices")


def _finish(where: str, reason: str) -> Finish:
    if reason in BROKEN:
        raise UpstreamFailure(
            "upstream", f"the policy at {where} aborted its answer ({reason})", replica_fault=True
        )
    return FINISHES.get(reason, "stop")


def _usage(counts: UsageFields | None) -> Usage | None:
    if counts is None:
        return None
    prompt, answer = counts.prompt_tokens_details, counts.completion_tokens_details
    return Usage(
        counts.prompt_tokens,
        counts.completion_tokens,
        cached=(prompt.cached_tokens or 0) if prompt else 0,
        reasoning=(answer.reasoning_tokens or 0) if answer else 0,
    )


def _prompt_ids(raw: dict[str, msgspec.Raw], choice: Choice) -> msgspec.Raw | None:
    """The prompt's ids in an unusual layout."""
    given = (raw.get("prompt_token_ids", _NULL), choice.prompt_token_ids)
    return next((ids for ids in given if bytes(ids) not in (b"", b"null")), None)


def _tokens(
    where: str, prompt: msgspec.Raw | None, choice: Choice, cut_logprobs: msgspec.Raw | None
) -> TokenIds | None:
    ids, logprobs = choice.token_ids, choice.logprobs
    if cut_logprobs is not None and ids is not None:
        values: list[float] | None = [
            entry.logprob for entry in _values.decode(cut_logprobs).content
        ]
    else:
        logprobs = _logprobs.decode(cut_logprobs) if cut_logprobs is not None else logprobs
        ids, values = _ids_and_logprobs(ids, logprobs)
    if ids is None:
        return None
    return TokenIds(prompt, ids, values, _versions(where, choice.token_versions))


def _versions(where: str, runs: list[tuple[str, int]] | None) -> tuple[tuple[Version, int], ...]:
    try:
        return tuple((Version.parse(text), count) for text, count in runs or ())
    except ValueError as error:
        raise invalid_answer(where, f"token_versions: {error}") from error


def _ids_and_logprobs(
    ids: list[int] | None, logprobs: Logprobs | None
) -> tuple[list[int] | None, list[float] | None]:
    entries = logprobs.content if logprobs is not None else None
    if entries is None:
        return ids, None
    values = [entry.logprob for entry in entries]
    if ids is None and entries:
        ids = [entry.id for entry in entries if entry.id is not None]
        ids = ids if len(ids) == len(entries) else None
    return ids, values


def _call(where: str, call: WireCall) -> ToolCall:
    name, arguments = call.function.name, call.function.arguments
    if not name:
        raise invalid_answer(where, "a tool call has no name")
    if arguments is None:
        raise invalid_answer(where, f"the call to {name} has no arguments")
    return ToolCall(call.id or new_call_id(), name, arguments)


class StreamReader:
    """Parses the pieces of one stream, and tracks whether it is complete."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._started_calls: set[int] = set()
        self.finished = False

    def read(self, data: bytes) -> Chunk:
        data, prompt = cut_prompt_ids(data)
        try:
            body = _chunk.decode(data)
        except DECODE_ERRORS as error:
            raise invalid_answer(self._where, f"a piece of its stream: {error}") from error
        if body.error and bytes(body.error) != b"null":
            raise failure_from_event(self._where, bytes(body.error))
        usage = _usage(body.usage) if body.usage is not None else None
        if not body.choices:
            return Chunk(data, usage=usage, prompt_ids=prompt, only_usage=True)
        choice = body.choices[0]
        if choice.index or len(body.choices) > 1:
            raise invalid_answer(self._where, _SEVERAL)
        return self._chunk(Chunk(data, usage=usage, prompt_ids=prompt), choice)

    def _chunk(self, chunk: Chunk, choice: ChunkChoice) -> Chunk:
        if choice.token_ids is not None or choice.logprobs is not None:
            chunk.ids, chunk.logprobs = _ids_and_logprobs(choice.token_ids, choice.logprobs)
        if choice.token_versions is not None:
            chunk.versions = _versions(self._where, choice.token_versions)
        if choice.delta is not None:
            self._fill(chunk, choice.delta)
        if choice.finish_reason is not None:
            chunk.finish = _finish(self._where, choice.finish_reason)
            self.finished = True
        return chunk

    def _fill(self, chunk: Chunk, message_fields: MessageFields) -> None:
        chunk.text = message_fields.content or message_fields.refusal or ""
        chunk.reasoning = message_fields.reasoning or message_fields.reasoning_content or ""
        if message_fields.tool_calls:
            chunk.calls = calls = [self._delta(call) for call in message_fields.tool_calls]
            ids = [call.id for call in calls]
            if ids != [call.id or "" for call in message_fields.tool_calls]:
                chunk.data = with_stream_call_ids(chunk.data, ids)

    def _delta(self, call: WireCall) -> CallDelta:
        name, id = call.function.name or "", call.id or ""
        if call.index not in self._started_calls:
            if not name:
                raise invalid_answer(self._where, "a tool call has no name")
            self._started_calls.add(call.index)
            id = id or new_call_id()
        return CallDelta(call.index, id, name, call.function.arguments or "")
