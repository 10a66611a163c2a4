"""Request fields: which top-level fields of a request reach the policy's server."""

import re

import msgspec

from plimsoll.gateway.completions import Refusal

__all__ = ["refuse_location_fields", "training_fields", "without_strict"]

_LOCATION_FIELDS = frozenset(
    {
        "audio_data",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "image_data",
        "input_embeds",
        "kv_transfer_params",
        "lora_path",
        "lora_request",
        "prompt_embeds",
        "video_data",
    }
)
"""Fields of vLLM and SGLang that make a server connect to a host, open a file, load an adapter or
unpickle a tensor. Agents do not send them by default, so they are refused in every run.
"""

_TRAINING_FIELDS = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "parallel_tool_calls",
        "reasoning_effort",
        "return_token_ids",
        "stop",
        "top_logprobs",
    }
)
"""Fields that reach a server in training: they end an answer, select the reported fields, or are
part of the recorded prompt. All others are dropped.
"""

_FREE_CHOICES = (b'"auto"', b'"none"', b"null")
"""Values of `tool_choice` that do not constrain generation by a grammar."""

_STRICT = re.compile(rb'"strict"\s*:\s*true')
_TOOLS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_FUNCTION = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def refuse_location_fields(settings: dict[str, msgspec.Raw]) -> None:
    """Raise `Refusal` for a field that makes the server open something."""
    for name in sorted(_LOCATION_FIELDS & settings.keys()):
        if bytes(settings[name]) != b"null":
            message = f"{name} is not forwarded to the policy's server; remove this field"
            raise Refusal("unsupported", message, param=name)


def training_fields(settings: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The fields that do not change the policy's distribution.

    The reported log probabilities are the model's own. A field that changes which tokens can be
    sampled, such as a bias or a grammar, would make them wrong; a fixed seed would make all members
    of a group answer alike.
    """
    allowed = {name: raw for name, raw in settings.items() if name in _TRAINING_FIELDS}
    choice = settings.get("tool_choice")
    if choice is not None and bytes(choice) in _FREE_CHOICES:
        allowed["tool_choice"] = choice
    return allowed


def without_strict(tools: msgspec.Raw) -> msgspec.Raw:
    """The tools without `strict`, which makes some servers constrain calls by a grammar."""
    if _STRICT.search(tools) is None:
        return tools
    listed = _TOOLS.decode(tools)
    for tool in listed:
        tool.pop("strict", None)
        if bytes(tool.get("function", b""))[:1] == b"{":
            function = _FUNCTION.decode(tool["function"])
            function.pop("strict", None)
            tool["function"] = msgspec.Raw(_encode(function))
    return msgspec.Raw(_encode(listed))
