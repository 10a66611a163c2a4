"""Translates a script's command into a call of the tools that an agent offers.

Agents name their shell tool differently and expect different arguments: a string, a list of words,
an additional description. The tool's JSON schema tells which.
"""

import re

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.upstreams.answer_fields import ABSENT
from plimsoll.gateway.upstreams.scripted.request import RequestTool

__all__ = ["end_line", "offers_submit", "run_call"]

SHELLS = (
    "bash",
    "shell_command",
    "exec_command",
    "shell",
    "local_shell",
    "run_shell_command",
    "execute_bash",
    "run_command",
    "terminal",
)
COMMANDS = ("command", "cmd", "script", "code", "input")

END_LINE = re.compile(r"\b[A-Z]+_TASK_AND_SUBMIT_[A-Z_]+\b")
"""The line that an agent expects to be printed when the work is done."""


class _Property(msgspec.Struct):
    type: str | list[str] | None = None
    enum: list[msgspec.Raw] | None = None
    default: msgspec.Raw = ABSENT


class _Schema(msgspec.Struct):
    properties: dict[str, _Property] = {}
    required: list[str] = []


_schema = msgspec.json.Decoder(_Schema)

_FILLED: dict[str, object] = {
    "string": "as the script says",
    "boolean": False,
    "integer": 60,
    "number": 60,
    "array": [],
    "object": {},
}


def run_call(command: str, tools: list[RequestTool]) -> tuple[str, dict[str, object]] | None:
    """The tool name and arguments that run the command; None if no tool can."""
    for tool in _in_order(tools):
        schema = _read_schema(tool)
        name = next((name for name in COMMANDS if name in schema.properties), None)
        if name is None:
            continue
        arguments: dict[str, object] = {name: _command(command, schema.properties[name])}
        for other in schema.required:
            if other not in arguments:
                arguments[other] = _fill(schema.properties.get(other, _Property()))
        return tool.name, arguments
    return None


def offers_submit(tools: list[RequestTool]) -> bool:
    return any(tool.name == "submit" for tool in tools)


def end_line(conversation: str) -> str:
    """The line that ends the task for this agent; empty if there is none."""
    found = END_LINE.search(conversation)
    return found.group() if found else ""


def _in_order(tools: list[RequestTool]) -> list[RequestTool]:
    """Known shells first, then any other tool that takes a command."""
    rank = {name: index for index, name in enumerate(SHELLS)}
    return sorted(tools, key=lambda tool: rank.get(tool.name.lower(), len(rank)))


def _read_schema(tool: RequestTool) -> _Schema:
    try:
        return _schema.decode(tool.parameters)
    except DECODE_ERRORS:
        return _Schema()


def _command(command: str, schema_property: _Property) -> object:
    return ["bash", "-lc", command] if _type(schema_property) == "array" else command


def _fill(schema_property: _Property) -> object:
    fixed = bytes(schema_property.default) or (
        bytes(schema_property.enum[0]) if schema_property.enum else b""
    )
    if fixed:
        return msgspec.json.decode(fixed)
    return _FILLED.get(_type(schema_property), "")


def _type(schema_property: _Property) -> str:
    kind = schema_property.type
    return (kind[0] if kind else "") if isinstance(kind, list) else (kind or "string")
