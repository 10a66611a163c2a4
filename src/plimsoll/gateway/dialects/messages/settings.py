"""The settings and tools of a Messages request, in the form of Chat Completions."""

from typing import Any, Literal

import msgspec

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.encoding import decode, encode
from plimsoll.gateway.dialects.size_limits import MAX_STOPS, MAX_TOOLS, check_count

__all__ = ["read_settings", "read_tools", "wants_thinking"]

_DROPPED = frozenset(
    {
        "betas",
        "cache_control",
        "context_management",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
    }
)
"""Fields for Anthropic's own servers, without effect on the policy."""

_UNSUPPORTED = {
    "container": "this server has no containers",
    "mcp_servers": "this server does not connect to MCP servers; connect to them from the agent",
}


_OF_CHAT = frozenset(
    {
        "function_call",
        "functions",
        "logprobs",
        "max_completion_tokens",
        "n",
        "parallel_tool_calls",
        "response_format",
        "stop",
        "stream_options",
        "top_logprobs",
    }
)
"""Fields of Chat Completions only: they would change the number or content of answers, or conflict
with the translated fields.
"""


_CLIENT_RUN = ("bash_", "computer_", "memory_", "text_editor_")
"""Prefixes of the types of tools that the agent runs and whose schemas Anthropic's models know."""


class _Tool(msgspec.Struct):
    name: str
    description: str | None = None
    input_schema: dict[str, msgspec.Raw] | None = None
    type: str | None = None


class _Choice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: msgspec.Raw


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None


class _Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]


_TOOLS = msgspec.json.Decoder(list[_Tool] | None)
_CHOICE = msgspec.json.Decoder(_Choice | None)
_FORMAT = msgspec.json.Decoder(_Format | None)
_OUTPUT = msgspec.json.Decoder(_OutputConfig | None)
_THINKING = msgspec.json.Decoder(_Thinking | None)
_STOPS = msgspec.json.Decoder(list[str] | None)
_MAX_TOKENS = msgspec.json.Decoder(int | None)

_NULL = msgspec.Raw(b"null")


def read_tools(raw: msgspec.Raw) -> msgspec.Raw | None:
    """The tools as functions. Tools that only Anthropic's servers run are refused."""
    tools = decode(raw, _TOOLS, "tools")
    if not tools:
        return None
    check_count(len(tools), MAX_TOOLS, "tools")
    return msgspec.Raw(encode([_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]))


def _function(tool: _Tool, where: str) -> dict[str, Any]:
    if tool.input_schema is None:
        message = f"{where}: {tool.name} ({tool.type or 'no type'}) has no input_schema. "
        if _is_run_by_a_server(tool.type):
            message += (
                "Tools that a server runs are not available here; offer tools that the agent runs."
            )
        else:
            message += "The policy does not know tools by type: give the tool's schema."
        raise Refusal("unsupported", message, param=f"{where}.input_schema")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    return {"type": "function", "function": function}


def _is_run_by_a_server(kind: str | None) -> bool:
    return kind not in (None, "custom") and not kind.startswith(_CLIENT_RUN)


def wants_thinking(raw: msgspec.Raw) -> bool:
    """Whether the agent sees the reasoning. It does not control whether the policy reasons."""
    thinking = decode(raw, _THINKING, "thinking")
    return thinking is not None and thinking.type != "disabled"


def read_settings(fields: dict[str, msgspec.Raw], has_tools: bool) -> dict[str, msgspec.Raw]:
    """All other fields. Unknown fields are forwarded, as settings of the server. Fields of Chat
    Completions only are refused."""
    settings = {name: raw for name, raw in fields.items() if name not in _DROPPED}
    for name in sorted(_OF_CHAT & settings.keys()):
        if bytes(settings.pop(name)) != b"null":
            raise Refusal("bad_request", f"{name} is not a field of Messages", param=name)
    for name, why in _UNSUPPORTED.items():
        if bytes(settings.pop(name, _NULL)) not in (b"null", b"[]"):
            raise Refusal("unsupported", f"{name}: {why}", param=name)
    decode(settings.get("max_tokens", _NULL), _MAX_TOKENS, "max_tokens")
    stops = settings.pop("stop_sequences", _NULL)
    if given := decode(stops, _STOPS, "stop_sequences"):
        check_count(len(given), MAX_STOPS, "stop_sequences")
        settings["stop"] = stops
    choice = decode(settings.pop("tool_choice", _NULL), _CHOICE, "tool_choice")
    if choice is not None and has_tools:
        settings |= _tool_choice(choice)
    output = decode(settings.pop("output_config", _NULL), _OUTPUT, "output_config")
    form = decode(settings.pop("output_format", _NULL), _FORMAT, "output_format")
    form = form or (output.format if output is not None else None)
    if form is not None:
        schema = {"name": "output", "schema": form.schema}
        settings["response_format"] = _raw({"type": "json_schema", "json_schema": schema})
    return settings


def _tool_choice(choice: _Choice) -> dict[str, msgspec.Raw]:
    match choice.type:
        case "tool":
            if not choice.name:
                message = "tool_choice.name: field required"
                raise Refusal("bad_request", message, param="tool_choice.name")
            sent: object = {"type": "function", "function": {"name": choice.name}}
        case "any":
            sent = "required"
        case "auto" | "none":
            sent = choice.type
    settings = {"tool_choice": _raw(sent)}
    if choice.disable_parallel_tool_use:
        settings["parallel_tool_calls"] = _raw(False)
    return settings


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(encode(value))
