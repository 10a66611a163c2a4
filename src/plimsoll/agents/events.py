"""The last words of agents that print one JSON object a line."""

import re
from typing import TypeVar

import msgspec

from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.core.unreadable import UNREADABLE
from plimsoll.sandboxes.protocol import ExecResult

__all__ = ["last_event", "of_failure"]

_LONGEST = 500
_CONTEXT = re.compile(
    r"context_length_exceeded|context.?window|context (?:length|limit)|prompt is too long", re.I
)

Event = TypeVar("Event")


def last_event(done: ExecResult, decoder: "msgspec.json.Decoder[Event]") -> Event | None:
    """The last line that can be read: by its tag, the last event of the kinds that are meant."""
    # Other ends of lines, such as U+2028, may stand in JSON's strings as they are.
    for line in reversed(done.stdout.text.split("\n")):
        try:
            return decoder.decode(line)
        except UNREADABLE:
            continue
    return None


def of_failure(done: ExecResult, said: str) -> Outcome:
    """The outcome of an agent that gave up, and says why."""
    ending = Ending.BUDGET if _CONTEXT.search(said) else Ending.SUBMITTED
    detail = " ".join(said.split())[:_LONGEST]
    return Outcome(ending, f"{done.describe()}: {detail}", done.exit_code)
