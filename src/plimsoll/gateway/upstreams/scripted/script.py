"""Scripts: the answers of a scripted policy, from a TOML file.

    aside = "ok"                        # answers requests without tools: titles, topic checks
    otherwise = "Done."                 # after all turns are taken

    [[turns]]                           # in the order of the conversation
    reasoning = "Look first."
    text = "I look at the files."
    run = "ls"                          # by any shell tool that the agent offers

    [[turns]]
    calls = [{ name = ["Write", "write_file"], arguments = { path = "a.txt", content = "x" } }]

    [[turns]]
    submit = true                       # ends the task in the agent's way
    text = "Done."

    [[rules]]                           # before the turns; the first match answers
    when = "title"                      # a text, or /a pattern/, in the last message
    where = "conversation"              # or here: last, system, conversation
    tools = false                       # only for requests without tools (true: with)
    text = "A title"

    [[turns]]
    failure = "cut"                     # one of `Fault`, or an HTTP status
    times = 1                           # this often, then the answer; default: always
    text = "At last."
    delay = 0.5                         # seconds before the answer

A turn is taken once its answer is in the conversation. So a script is stateless: the same request
gets the same answer, and side requests do not disturb it.
"""

import re
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from plimsoll.core.errors import UsageError
from plimsoll.gateway.upstreams.scripted.request import RequestMessage, ScriptedRequest

__all__ = ["CallSpec", "Fault", "Rule", "Script", "Turn", "load_script"]

LATER_CALL = re.compile(r"call_[1-9]\d*_")
"""The id of a call that is not the first of its answer."""

Fault = Literal["drop", "hang", "stall", "cut", "half-event", "garbage", "bad-call", "slow"]
"""drop        the connection is closed before the first byte
hang        no byte is ever sent
stall, cut  half of the answer is sent, then nothing, or the connection is closed
half-event  a stream ends within an event
garbage     the answer is not JSON
bad-call    a tool call without a name
slow        the answer is sent a few bytes at a time
"""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CallSpec(_Table):
    """A tool call."""

    name: str | list[str]
    """If there are several: the first that the request offers."""
    arguments: dict[str, JsonValue] | str = {}
    """A string for arguments that are not valid JSON."""


class Turn(_Table):
    """One answer."""

    text: str = ""
    reasoning: str = ""
    run: str = ""
    calls: tuple[CallSpec, ...] = ()
    submit: bool = False
    delay: float = Field(default=0.0, ge=0)
    failure: Fault | int | None = None
    times: int | None = Field(default=None, ge=1)
    finish: Literal["stop", "length", "content_filter"] = "stop"


class Rule(Turn):
    """An answer to matching requests, in any turn."""

    when: str = ""
    where: Literal["last", "system", "conversation"] = "last"
    tools: bool | None = None

    def matches(self, request: ScriptedRequest) -> bool:
        if self.tools is not None and self.tools != bool(request.tools):
            return False
        text = _text_of(request, self.where)
        if len(self.when) > 2 and self.when.startswith("/") and self.when.endswith("/"):
            return re.search(self.when[1:-1], text) is not None
        return self.when.lower() in text.lower()


class Script(_Table):
    """The answers of a scripted policy."""

    turns: tuple[Turn, ...] = ()
    rules: tuple[Rule, ...] = ()
    aside: str = "ok"
    otherwise: str = "Done."

    def turn(self, request: ScriptedRequest) -> Turn:
        for rule in self.rules:
            if rule.matches(request):
                return rule
        calls = any(turn.run or turn.calls for turn in self.turns)
        if calls and not request.tools:
            return Turn(text=self.aside)
        count = self._turns_taken(request.messages)
        if count < len(self.turns):
            return self.turns[count]
        return Turn(text=self.otherwise, submit=True)

    def _turns_taken(self, messages: list[RequestMessage]) -> int:
        """The number of turns in the conversation. Assistant messages by others do not count."""
        count = 0
        for message in messages:
            if count < len(self.turns) and message.role == "assistant":
                count += _is_answer(message, self.turns[count])
        return count


def _is_answer(message: RequestMessage, turn: Turn) -> bool:
    if message.tool_calls and (turn.run or turn.calls or turn.submit):
        # Some agents send the calls of one answer back as several messages.
        return LATER_CALL.match(message.tool_calls[0].id) is None
    if turn.run or turn.calls:
        return False
    return not message.tool_calls and message.text.strip() == turn.text.strip()


def _text_of(request: ScriptedRequest, where: str) -> str:
    if where == "last":
        return request.last
    if where == "conversation":
        return request.conversation
    return "\n".join(m.text for m in request.messages if m.role in ("system", "developer"))


def load_script(path: Path) -> Script:
    """Load a script. Errors name the file and the key."""
    try:
        return Script.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"the script {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the script {path} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        problem = f"{key}: {first['msg']}"
        if first["type"] == "extra_forbidden":
            valid = ", ".join(_table_at(first["loc"]).model_fields)
            problem = f"unknown key {key} (valid keys: {valid})"
        raise UsageError(f"the script {path}: {problem}") from error


def _table_at(loc: tuple[int | str, ...]) -> type[_Table]:
    """The table that the key at this location belongs to."""
    tables: dict[str, type[_Table]] = {"turns": Turn, "rules": Rule, "calls": CallSpec}
    return next((tables[part] for part in reversed(loc[:-1]) if part in tables), Script)
