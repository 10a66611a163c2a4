"""Capabilities of an upstream: the fields it returns, and the uses they allow."""

from dataclasses import dataclass

from plimsoll.gateway.upstreams.openai_server import SupportedFields

__all__ = ["Capabilities", "render_capabilities", "suggested_changes", "training_support"]


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
    def asks(self) -> SupportedFields:
        """The fields that requests may ask for."""
        return SupportedFields(self.logprobs, self.token_ids, self.stream_usage)


def render_capabilities(found: Capabilities) -> list[str]:
    """Describe the capabilities, and the changes that a run would need."""
    if found.problem:
        return [found.problem, "neither evaluation nor training is possible"]
    context = f"{found.context:,} tokens" if found.context else "unknown"
    lines = [
        f"policy     {found.model} at {found.url} · context {context}",
        f"text       {_yes(found.text)}",
        f"tools      {_yes(found.tools)}",
        f"logprobs   {_yes(found.logprobs)}",
        f"token ids  {_ids(found)}",
        f"streams    {_streams(found)}",
        f"count      {_count(found)}",
        f"evaluation {_evaluation(found)}",
        f"training   {training_support(found)}",
    ]
    return lines + [f"to change  {change}" for change in suggested_changes(found)]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _ids(found: Capabilities) -> str:
    if not found.token_ids:
        return "no"
    return "of prompts and answers" if found.prompt_ids else "of answers, not of prompts"


def _streams(found: Capabilities) -> str:
    if not found.streams:
        return "no: the gateway streams whole answers itself"
    if found.streams_all:
        return "yes"
    return "token ids are incomplete: the gateway requests whole answers and streams them itself"


def _count(found: Capabilities) -> str:
    return "yes" if found.count else "no: requests to count tokens are refused"


def _evaluation(found: Capabilities) -> str:
    if not found.text:
        return "not possible"
    return "possible" if found.tools else "possible, for agents without tools"


def training_support(found: Capabilities) -> str:
    """Whether the answers can be trained on, and the missing fields if not."""
    if found.trains:
        return "possible"
    wanted = {
        "log probabilities": found.logprobs,
        "token ids of answers": found.token_ids,
        "token ids of prompts": found.prompt_ids,
    }
    missing = ", ".join(name for name, has in wanted.items() if not has)
    return f"not possible: it needs token ids and log probabilities; missing: {missing}"


def suggested_changes(found: Capabilities) -> list[str]:
    """Suggested changes to the server, for everything that is missing."""
    wanted: list[str] = []
    if not found.tools:
        wanted.append("vLLM: --enable-auto-tool-choice --tool-call-parser NAME; llama.cpp: --jinja")
    if not (found.token_ids and found.prompt_ids):
        wanted.append(
            "vLLM 0.10.2 or newer returns token ids (return_token_ids); so does SGLang's newest"
        )
    if not found.logprobs:
        wanted.append("serve with log probabilities: vLLM --max-logprobs 1 or more")
    if found.trains and found.streams and not found.streams_all:
        if found.stream_ids and not found.calls:
            why = "the model called no tool when asked to, so streams with calls are unverified"
        else:
            why = "token ids in streams with tools are incomplete in some versions of vLLM"
        wanted.append(f"nothing: {why}; whole answers have them")
    return wanted
