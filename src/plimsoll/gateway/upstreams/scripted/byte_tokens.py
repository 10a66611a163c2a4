"""The tokens of a scripted policy: one per byte of UTF-8, and special tokens above 255.

A conversation is rendered message by message, and an answer is rendered as it will be when the
agent sends it back. So the tokens of a conversation that extends another begin with the tokens of
that one, including its answer.
"""

import json
from collections.abc import Iterable

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.upstreams.scripted.request import RequestMessage, ScriptedRequest

__all__ = ["answer_ids", "canonical", "decode_ids", "logprobs_of", "prompt_ids"]

END = 256
"""Ends a message. The last token of each answer."""
ROLES = {"system": 257, "developer": 257, "user": 258, "assistant": 259, "tool": 260}
TOOLS = 261
THOUGHT = 262
SAID = 263
CALL = 264
ARGUMENTS = 265
NAMES = {END: "<end>", 257: "<system>", 258: "<user>", 259: "<assistant>", 260: "<tool>"} | {
    TOOLS: "<tools>",
    THOUGHT: "<thought>",
    SAID: "<said>",
    CALL: "<call>",
    ARGUMENTS: "<arguments>",
}


def prompt_ids(request: ScriptedRequest) -> list[int]:
    """The tokens before the answer: tools, messages, and the assistant's role token."""
    ids: list[int] = []
    if request.tools_text:
        ids.append(TOOLS)
        ids.extend(request.tools_text)
        ids.append(END)
    for message in request.messages:
        ids.append(ROLES.get(message.role, ROLES["user"]))
        if message.role == "assistant":
            ids.extend(_assistant(message))
        else:
            ids.extend(message.text.encode())
            ids.append(END)
    ids.append(ROLES["assistant"])
    return ids


def answer_ids(reasoning: str, text: str, calls: Iterable[tuple[str, str]]) -> list[int]:
    """The tokens of an answer; `calls` are pairs of name and arguments."""
    ids: list[int] = []
    if reasoning:
        ids.append(THOUGHT)
        ids.extend(reasoning.encode())
        ids.append(SAID)
    ids.extend(text.encode())
    for name, arguments in calls:
        ids.append(CALL)
        ids.extend(name.encode())
        ids.append(ARGUMENTS)
        ids.extend(canonical(arguments).encode())
    ids.append(END)
    return ids


def logprobs_of(ids: list[int]) -> list[float]:
    """A log probability for each id: deterministic, and exact as 32-bit floats."""
    return [-((token * 40503 + index * 30011) % 4096) / 1024 for index, token in enumerate(ids)]


def decode_ids(ids: Iterable[int]) -> str:
    """The text of tokens, for people and tests."""
    text_bytes = bytearray()
    for token in ids:
        text_bytes.extend(bytes([token]) if token < END else NAMES.get(token, "<?>").encode())
    return text_bytes.decode("utf-8", "replace")


def _assistant(message: RequestMessage) -> list[int]:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return answer_ids(message.reasoning_text, message.text, calls)


def canonical(arguments: str) -> str:
    """Arguments in canonical form: agents re-encode them, with other spaces and key order."""
    try:
        value = json.loads(arguments)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except DECODE_ERRORS:
        return arguments
