"""Recorded sessions for tests of views and exports, made with the toy tokenizer of trajectories."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent / "trajectories"))

from recording_parts import TOOLS, Spoken, done, generated, prompted, system

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.trajectories.messages import Image, Message, Text, ToolCall
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.records import Exchange, Finish
from plimsoll.trajectories.reported_tokens import TokenIds
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import read_trajectory

__all__ = ["TOOLS", "Talk", "ask", "calling", "generated", "prompted", "result", "say", "system"]


def ask(text: str, *images: str) -> Message:
    return Message("user", (Text(text), *(Image(url) for url in images)))


def say(text: str, reasoning: str = "") -> Message:
    return Message("assistant", (Text(text),), reasoning)


def calling(name: str, arguments: str, *, id: str = "c1", text: str = "") -> Message:
    return Message("assistant", (Text(text),), calls=(ToolCall(id, name, arguments),))


def result(text: str, id: str = "c1") -> Message:
    return Message("tool", (Text(text),), call_id=id)


class Talk:
    """Records one session in a folder. A turn takes one second."""

    def __init__(
        self, folder: Path, about: dict[str, str] | None = None, tools: msgspec.Raw | None = TOOLS
    ) -> None:
        self.recorder = Recorder.open(folder, folder / "blobs", "s1", about or {})
        self.tools = tools
        self.now = 1_700_000_000.0

    def turn(
        self,
        messages: Sequence[Message],
        answer: Message,
        *,
        version: Version = FIRST_VERSION,
        finish: Finish = "stop",
        ids: bool = True,
        odd: int | None = None,
    ) -> Exchange:
        """Record an exchange. `odd` replaces the first prompt token that the server reports."""
        self.now += 1
        prompt, new = prompted(messages), generated(answer)
        if odd is not None:
            prompt[0] = odd
        returned = TokenIds(prompt, new, [-0.5] * len(new)) if ids else None
        position = self.recorder.locate(Spoken(messages), self.tools)
        exchange = done(
            messages, answer, version=version, finish=finish, at=self.now, tokens=returned
        )
        return self.recorder.commit(position, exchange)

    async def close(self, ending: str = "submitted") -> Trajectory:
        return read_trajectory(await self.recorder.close(ending))
