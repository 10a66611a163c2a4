"""Translates tools of the Responses dialect to functions of Chat Completions, and calls back.

A policy knows functions only. A freeform tool becomes a function with one text, the local shell a
function with a command, and a tool in a namespace a function with a prefixed name. The original
tool is stored with the request.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.encoding import decode, encode
from plimsoll.gateway.dialects.size_limits import MAX_TOOLS, check_count

__all__ = ["LOCAL_SHELL", "AgentTool", "ToolList", "function_name", "read_choice", "read_tools"]

LOCAL_SHELL = "local_shell"

# Tools that OpenAI hosts and agents offer by default. They are dropped, and agents work without
# them. All other hosted tools are refused, because the agent relies on them.
_LEFT_OUT = frozenset(
    {"web_search", "web_search_preview", "image_generation", "tool_search"},
)

_CLIENT_RUN = frozenset({"apply_patch", "computer", "computer_use_preview", "shell"})
"""Types of tools that the agent runs and whose schemas OpenAI's models know."""

_SHELL_PARAMETERS = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}


class AgentTool(msgspec.Struct, frozen=True):
    """The agent's tool behind a function of the policy."""

    kind: Literal["function", "custom", "local_shell"]
    name: str
    namespace: str | None = None


class ToolList(msgspec.Struct, frozen=True):
    """A list of tools, and its field in the request."""

    where: str
    raw: msgspec.Raw


class _Format(msgspec.Struct):
    type: str
    syntax: str = ""
    definition: str = ""


class _Tool(msgspec.Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")
    strict: bool | None = None
    format: _Format | None = None
    tools: msgspec.Raw = msgspec.Raw(b"[]")


class _Choice(msgspec.Struct):
    type: str
    name: str = ""
    namespace: str | None = None


_TOOLS = msgspec.json.Decoder(list[_Tool])
_CHOICE: msgspec.json.Decoder[str | _Choice] = msgspec.json.Decoder(str | _Choice)


def function_name(name: str, namespace: str | None) -> str:
    """The policy's name for a tool."""
    return f"{namespace}__{name}" if namespace else name


def read_tools(lists: Iterable[ToolList]) -> tuple[msgspec.Raw | None, dict[str, AgentTool]]:
    """The tools for an upstream, and the agent's tool for each function name."""
    functions: dict[str, object] = {}
    agent_tools: dict[str, AgentTool] = {}
    for tools in lists:
        _add(tools, None, functions, agent_tools)
    if not functions:
        return None, agent_tools
    return msgspec.Raw(encode(list(functions.values()))), agent_tools


def _add(
    tools: ToolList,
    namespace: str | None,
    functions: dict[str, object],
    agent_tools: dict[str, AgentTool],
) -> None:
    listed = decode(tools.raw, _TOOLS, tools.where)
    check_count(len(functions) + len(listed), MAX_TOOLS, tools.where)
    for index, tool in enumerate(listed):
        where = f"{tools.where}[{index}]"
        if tool.type in _LEFT_OUT or tool.type.startswith("web_search_preview_"):
            continue
        if tool.type == "namespace" and namespace is None:
            _named(tool.name, where)
            _add(ToolList(f"{where}.tools", tool.tools), tool.name, functions, agent_tools)
            continue
        agent_tool = _agent_tool(tool, namespace, where)
        name = function_name(agent_tool.name, agent_tool.namespace)
        agent_tools[name] = agent_tool
        function = {"name": name, **_function(tool, where)}
        functions[name] = {"type": "function", "function": function}


def _agent_tool(tool: _Tool, namespace: str | None, where: str) -> AgentTool:
    match tool.type:
        case "function" | "custom":
            return AgentTool(tool.type, _named(tool.name, where), namespace)
        case "local_shell":
            return AgentTool("local_shell", LOCAL_SHELL)
        case _:
            if tool.type in _CLIENT_RUN:
                why = "have no schema here; offer the tool as a function, with its parameters"
            else:
                why = "are not available here; remove it"
            message = f"{where}: tools of type `{tool.type}` {why}"
            raise Refusal("unsupported", message, param=f"{where}.type")


def _named(name: str, where: str) -> str:
    if not name:
        raise Refusal("bad_request", f"{where}: the tool has no name", param=f"{where}.name")
    return name


def _function(tool: _Tool, where: str) -> dict[str, object]:
    match tool.type:
        case "custom":
            return {"description": _freeform(tool), "parameters": _TEXT_PARAMETERS}
        case "local_shell":
            return {
                "description": "Runs a command and returns its output.",
                "parameters": _SHELL_PARAMETERS,
            }
        case _:
            return _plain(tool, where)


def _plain(tool: _Tool, where: str) -> dict[str, object]:
    parameters = bytes(tool.parameters)
    if parameters == b"null":
        parameters = b'{"type":"object","properties":{}}'
    if not parameters.startswith(b"{"):
        at = f"{where}.parameters"
        raise Refusal("bad_request", f"{at}: expected an object, a JSON schema", param=at)
    function: dict[str, object] = {"parameters": msgspec.Raw(parameters)}
    if tool.description:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return function


_TEXT_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}


def _freeform(tool: _Tool) -> str:
    lines = [tool.description] if tool.description else []
    if tool.format is not None and tool.format.definition:
        lines.append(f"`input` follows this {tool.format.syntax} grammar:")
        lines.append(tool.format.definition)
    return "\n\n".join(lines)


def read_choice(raw: msgspec.Raw, agent_tools: dict[str, AgentTool]) -> object:
    """`tool_choice` for an upstream."""
    choice = decode(raw, _CHOICE, "tool_choice")
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise Refusal(
                "bad_request", f"tool_choice: unknown value `{choice}`", param="tool_choice"
            )
        return choice
    name = LOCAL_SHELL if choice.type == "local_shell" else choice.name
    called = function_name(name, choice.namespace)
    if choice.type not in ("function", "custom", "local_shell") or called not in agent_tools:
        raise Refusal(
            "unsupported",
            f"tool_choice: no tool `{called or choice.type}` is offered",
            param="tool_choice",
        )
    return {"type": "function", "function": {"name": called}}
