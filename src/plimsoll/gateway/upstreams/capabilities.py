"""Capabilities of an upstream: the fields it returns, and the uses they allow."""

from dataclasses import dataclass

__all__ = [
    "Capabilities",
    "SupportedFields",
    "render_capabilities",
    "suggested_changes",
    "training_support",
]


@dataclass(frozen=True, slots=True)
class SupportedFields:
    """The optional fields that a server accepts. Some servers reject unknown fields."""

    logprobs: bool = True
    token_ids: bool = True
    stream_usage: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The results of probing a server."""

    url: str
    problem: str = ""
    """The reason why it cannot be used at all; all fields below are then False."""
    models: tuple[str, ...] = ()
    model: str = ""
    context: int | None = None
    text: bool = False
    logprobs: bool = False
    token_ids: bool = False
    prompt_ids: bool = False
    streams: bool = False
    stream_usage: bool = False
    stream_ids: bool = False
    """Whether streams report as many token ids as they count tokens."""
    tools: bool = False
    calls: bool = False
    """Whether the model called a tool when asked to."""
    tool_stream_ids: bool = False
    """Like `stream_ids`, for streams with tool calls: False if no call was seen, unless the server
    declares it."""
    count: bool = False

    @property
    def trains(self) -> bool:
        return self.token_ids and self.prompt_ids and self.logprobs

    @property
    def streams_all(self) -> bool:
        """Whether streams carry everything that whole answers do."""
        if not self.streams:
            return False
        return not self.token_ids or (self.stream_ids and (self.tool_stream_ids or not self.tools))

    @property
    def supported_fields(self) -> SupportedFields:
        """The fields that requests may ask for."""
        return SupportedFields(self.logprobs, self.token_ids, self.stream_usage)


def render_capabilities(capabilities: Capabilities) -> list[str]:
    """Describe the capabilities, and the changes that a run would need."""
    if capabilities.problem:
        return [capabilities.problem, "neither evaluation nor training is possible"]
    context = f"{capabilities.context:,} tokens" if capabilities.context else "unknown"
    lines = [
        f"policy     {capabilities.model} at {capabilities.url} · context {context}",
        f"text       {_yes(capabilities.text)}",
        f"tools      {_yes(capabilities.tools)}",
        f"logprobs   {_yes(capabilities.logprobs)}",
        f"token ids  {_ids(capabilities)}",
        f"streams    {_streams(capabilities)}",
        f"count      {_count(capabilities)}",
        f"evaluation {_evaluation(capabilities)}",
        f"training   {training_support(capabilities)}",
    ]
    return lines + [f"to change  {change}" for change in suggested_changes(capabilities)]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _ids(capabilities: Capabilities) -> str:
    if not capabilities.token_ids:
        return "no"
    return "of prompts and answers" if capabilities.prompt_ids else "of answers, not of prompts"


def _streams(capabilities: Capabilities) -> str:
    if not capabilities.streams:
        return "no: the gateway streams whole answers itself"
    if capabilities.streams_all:
        return "yes"
    return "token ids are incomplete: the gateway requests whole answers and streams them itself"


def _count(capabilities: Capabilities) -> str:
    return "yes" if capabilities.count else "no: requests to count tokens are refused"


def _evaluation(capabilities: Capabilities) -> str:
    if not capabilities.text:
        return "not possible"
    return "possible" if capabilities.tools else "possible, for agents without tools"


def training_support(capabilities: Capabilities) -> str:
    """Whether the answers can be trained on, and the missing fields if not."""
    if capabilities.trains:
        return "possible"
    required = {
        "log probabilities": capabilities.logprobs,
        "token ids of answers": capabilities.token_ids,
        "token ids of prompts": capabilities.prompt_ids,
    }
    missing = ", ".join(name for name, has in required.items() if not has)
    return f"not possible: it needs token ids and log probabilities; missing: {missing}"


def suggested_changes(capabilities: Capabilities) -> list[str]:
    """Suggested changes to the server, for everything that is missing."""
    changes: list[str] = []
    if not capabilities.tools:
        changes.append(
            "vLLM: --enable-auto-tool-choice --tool-call-parser NAME; llama.cpp: --jinja"
        )
    if not (capabilities.token_ids and capabilities.prompt_ids):
        changes.append(
            "vLLM 0.10.2 or newer returns token ids (return_token_ids); so does the newest SGLang"
        )
    if not capabilities.logprobs:
        changes.append("serve with log probabilities: vLLM --max-logprobs 1 or more")
    if capabilities.trains and capabilities.streams and not capabilities.streams_all:
        if capabilities.stream_ids and not capabilities.calls:
            why = "the model called no tool when asked to, so streams with calls are unverified"
        else:
            why = "token ids in streams with tools are incomplete in some versions of vLLM"
        changes.append(f"nothing: {why}; whole answers have them")
    return changes
