"""Messages, histories and a toy tokenizer for tests of trajectories."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.trajectories.messages import Message, Part, Text, ToolCall, raw_key
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.records import Exchange
from plimsoll.trajectories.reported_tokens import AnsweredRequest, TokenIds
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import read_trajectory

TOOLS = msgspec.Raw(b'[{"type":"function","function":{"name":"bash"}}]')
END = 3
_ROLES = {"system": 4, "user": 5, "assistant": 6, "tool": 7}


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def user(text: str, *parts: Part) -> Message:
    return Message("user", (Text(text), *parts))


def assistant(text: str = "", *calls: ToolCall, reasoning: str = "") -> Message:
    return Message("assistant", (Text(text),) if text else (), reasoning, calls)


def tool(call_id: str, text: str) -> Message:
    return Message("tool", (Text(text),), call_id=call_id)


def bash(call_id: str, arguments: str = '{"command":"ls"}') -> ToolCall:
    return ToolCall(call_id, "bash", arguments)


class Spoken:
    """A history that counts how many of its messages are parsed."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self.read = 0

    def __len__(self) -> int:
        return len(self._messages)

    def key(self, index: int) -> bytes:
        return raw_key(msgspec.json.encode(self._messages[index]))

    def message(self, index: int) -> Message:
        self.read += 1
        return self._messages[index]


def message_ids(message: Message) -> list[int]:
    """A message as ids, without reasoning: an id per character, between its role and its end."""
    text = message.text + "".join(f"<{call.name} {call.id}>" for call in message.calls)
    return [_ROLES[message.role], *(100 + ord(letter) for letter in text), END]


def prompted(messages: Sequence[Message]) -> list[int]:
    return [one for message in messages for one in message_ids(message)] + [_ROLES["assistant"]]


def generated(answer: Message) -> list[int]:
    """The ids of an answer: its reasoning comes first, and the next prompt does not repeat it."""
    return [100 + ord(letter) for letter in answer.reasoning] + message_ids(answer)[1:]


def done(
    prompt: Sequence[Message],
    answer: Message,
    *,
    version: Version = FIRST_VERSION,
    text: bool = False,
    **changes: object,
) -> AnsweredRequest:
    """An answered request with all its tokens, as a correct server returns them."""
    ids, new = prompted(prompt), generated(answer)
    returned = TokenIds(
        msgspec.Raw(msgspec.json.encode(ids)) if text else ids, new, [-0.5] * len(new)
    )
    fields = {
        "answer": answer,
        "finish": "stop",
        "dialect": "chat",
        "at": 1.0,
        "seconds": 0.5,
        "version": version,
        "prompt_tokens": len(ids),
        "answer_tokens": len(new),
        "tokens": returned,
    }
    return AnsweredRequest(**{**fields, **changes})  # type: ignore[arg-type]


@dataclass
class Talk:
    """A recorded session and its exchanges."""

    recorder: Recorder
    folder: Path
    exchanges: list[Exchange] = field(default_factory=list[Exchange])

    def ask(
        self,
        *prompt: Message,
        answer: Message,
        tools: msgspec.Raw | None = None,
        **changes: object,
    ) -> Exchange:
        position = self.recorder.locate(Spoken(prompt), tools)
        exchange = self.recorder.commit(position, done(prompt, answer, **changes))  # type: ignore[arg-type]
        self.exchanges.append(exchange)
        return exchange

    async def close(self) -> Trajectory:
        return read_trajectory(await self.recorder.close("submitted"))


def talking(folder: Path) -> Iterator[Talk]:
    recorder = Recorder.open(folder / "trial", folder / "blobs", "s1", {"run": "r"})
    yield Talk(recorder, folder / "trial")
    recorder.abandon()
