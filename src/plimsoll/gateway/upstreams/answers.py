"""Reads the answers of an OpenAI-compatible server: whole ones, and the pieces of streams."""

import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.core.versions import Version, read_version
from plimsoll.gateway.forms import Answer, CallDelta, Chunk, TokenIds, Usage
from plimsoll.gateway.upstreams.call_ids import (
    new_call_id,
    with_call_ids,
    with_stream_call_ids,
)
from plimsoll.gateway.upstreams.cutting import Cut, cut, cut_ids
from plimsoll.gateway.upstreams.failures import Failed, from_error_event, garbage
from plimsoll.gateway.upstreams.wire import (
    Choice,
    ChunkBody,
    ChunkChoice,
    Counts,
    Logprobs,
    LogprobValues,
    Said,
    WholeBody,
    WireCall,
)
from plimsoll.trajectories.messages import Message, Text, ToolCall
from plimsoll.trajectories.records import Finish

__all__ = ["StreamReader", "read_answer"]

FINISHES: dict[str, Finish] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}
"""Other reasons are ways to stop."""

BROKEN = ("abort", "error")
"""The engine gave up: what it generated until then is no answer."""

_whole = msgspec.json.Decoder(WholeBody)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_logprobs = msgspec.json.Decoder(Logprobs)
_values = msgspec.json.Decoder(LogprobValues)
_chunk = msgspec.json.Decoder(ChunkBody)

_NULL = msgspec.Raw(b"null")
_SEVERAL = "it has several choices, and one was asked for"


def read_answer(where: str, data: bytes) -> Answer:
    """A whole answer. Raises `Failed` for what is none."""
    try:
        return _read(where, cut(data))
    except UNREADABLE:
        pass  # it may be the cut that went wrong
    try:
        return _read(where, Cut(data))
    except UNREADABLE as error:
        raise garbage(where, str(error)) from error


def _read(where: str, parts: Cut) -> Answer:
    body = _whole.decode(parts.data)
    raw = _fields.decode(parts.data)
    if not body.choices:
        raise _no_choices(where, raw)
    return _answer(where, raw, body, parts)


def _answer(where: str, raw: dict[str, msgspec.Raw], body: WholeBody, parts: Cut) -> Answer:
    choice = body.choices[0]
    if choice.index or len(body.choices) > 1:
        raise garbage(where, _SEVERAL)
    said = choice.message
    if choice.finish_reason is None:
        raise garbage(where, "it does not say why it ends")
    text = said.content or said.refusal or ""
    calls = tuple(_call(where, call) for call in said.tool_calls or ())
    if not all(call.id for call in said.tool_calls or ()):
        raw["choices"] = with_call_ids(raw["choices"], "message", [call.id for call in calls])
    return Answer(
        id=body.id or "",
        message=Message(
            role="assistant",
            parts=(Text(text),) if text else (),
            reasoning=said.reasoning or said.reasoning_content or "",
            calls=calls,
        ),
        finish=_finish(where, choice.finish_reason),
        usage=_usage(body.usage),
        tokens=_tokens(where, parts.prompt_ids or _prompt_ids(raw, choice), choice, parts.logprobs),
        raw=raw,
        logprobs=parts.logprobs,
    )


def _no_choices(where: str, raw: dict[str, msgspec.Raw]) -> Failed:
    if "error" in raw:
        return from_error_event(where, bytes(raw["error"]))
    return garbage(where, "it has no choices")


def _finish(where: str, reason: str) -> Finish:
    if reason in BROKEN:
        raise Failed("upstream", f"the policy at {where} gave up its answer ({reason})", down=True)
    return FINISHES.get(reason, "stop")


def _usage(counts: Counts | None) -> Usage | None:
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
    """Those that are not written as engines write them."""
    given = (raw.get("prompt_token_ids", _NULL), choice.prompt_token_ids)
    return next((ids for ids in given if bytes(ids) not in (b"", b"null")), None)


def _tokens(
    where: str, prompt: msgspec.Raw | None, choice: Choice, cut: msgspec.Raw | None
) -> TokenIds | None:
    ids, logprobs = choice.token_ids, choice.logprobs
    if cut is not None and ids is not None:
        values: list[float] | None = [each.logprob for each in _values.decode(cut).content]
    else:
        logprobs = _logprobs.decode(cut) if cut is not None else logprobs
        ids, values = _ids_and_logprobs(ids, logprobs)
    if ids is None:
        return None
    return TokenIds(prompt, ids, values, _versions(where, choice.token_versions))


def _versions(where: str, stamps: list[tuple[str, int]] | None) -> tuple[tuple[Version, int], ...]:
    try:
        return tuple((read_version(text), count) for text, count in stamps or ())
    except ValueError as error:
        raise garbage(where, f"token_versions: {error}") from error


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
        raise garbage(where, "a tool call has no name")
    if arguments is None:
        raise garbage(where, f"the call of {name} has no arguments")
    return ToolCall(call.id or new_call_id(), name, arguments)


class StreamReader:
    """Reads the pieces of one stream, and knows whether it has come to its end."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._named: set[int] = set()
        self.finished = False

    def read(self, data: bytes) -> Chunk:
        data, prompt = cut_ids(data)
        try:
            body = _chunk.decode(data)
        except UNREADABLE as error:
            raise garbage(self._where, f"a piece of its stream: {error}") from error
        if body.error and bytes(body.error) != b"null":
            raise from_error_event(self._where, bytes(body.error))
        usage = _usage(body.usage) if body.usage is not None else None
        if not body.choices:
            return Chunk(data, usage=usage, prompt_ids=prompt, only_usage=True)
        choice = body.choices[0]
        if choice.index or len(body.choices) > 1:
            raise garbage(self._where, _SEVERAL)
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

    def _fill(self, chunk: Chunk, said: Said) -> None:
        chunk.text = said.content or said.refusal or ""
        chunk.reasoning = said.reasoning or said.reasoning_content or ""
        if said.tool_calls:
            chunk.calls = calls = [self._delta(call) for call in said.tool_calls]
            ids = [call.id for call in calls]
            if ids != [call.id or "" for call in said.tool_calls]:
                chunk.data = with_stream_call_ids(chunk.data, ids)

    def _delta(self, call: WireCall) -> CallDelta:
        name, id = call.function.name or "", call.id or ""
        if call.index not in self._named:
            if not name:
                raise garbage(self._where, "a tool call has no name")
            self._named.add(call.index)
            id = id or new_call_id()
        return CallDelta(call.index, id, name, call.function.arguments or "")
