"""The documents of ATIF 1.8, as far as a trajectory has something to say in them."""

import msgspec

from plimsoll.trajectories.records import Trouble

__all__ = [
    "VERSION",
    "Agent",
    "Atif",
    "Call",
    "Content",
    "Extra",
    "FinalMetrics",
    "ImagePart",
    "ImageSource",
    "Metrics",
    "MetricsExtra",
    "Observation",
    "Result",
    "Step",
    "TextPart",
]

VERSION = "ATIF-v1.8"


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text beside an image."""

    text: str


class ImageSource(msgspec.Struct):
    """Where an image is: a file, or an address."""

    media_type: str
    path: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image"):
    """An image."""

    source: ImageSource


Content = str | list[TextPart | ImagePart]


class Agent(msgspec.Struct, omit_defaults=True):
    """Who acted."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: msgspec.Raw | None = None


class Call(msgspec.Struct, omit_defaults=True):
    """A tool call."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, msgspec.Raw]
    extra: dict[str, str] | None = None


class Result(msgspec.Struct, omit_defaults=True):
    """What a tool answered."""

    source_call_id: str | None = None
    content: Content | None = None


class Observation(msgspec.Struct):
    """What the tools of a step answered."""

    results: list[Result]


class MetricsExtra(msgspec.Struct, omit_defaults=True):
    """What the format has no field for."""

    version: str
    finish: str
    dialect: str
    seconds: float
    token_versions: list[tuple[str, int]] | None = None
    """Which version generated how many of the answer's tokens, in order."""
    untrainable: str = ""


class Metrics(msgspec.Struct, omit_defaults=True):
    """What the engine said of an answer."""

    extra: MetricsExtra
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class Step(msgspec.Struct, omit_defaults=True):
    """A message, with what came of it."""

    step_id: int
    source: str
    message: Content
    timestamp: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None


class FinalMetrics(msgspec.Struct, omit_defaults=True):
    """Sums over a document's steps."""

    total_steps: int
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None


class Extra(msgspec.Struct, omit_defaults=True):
    """What the format has no field for."""

    about: dict[str, str]
    branch: int
    reason: str
    """Why the branch starts."""
    left: str | None = None
    """The `trajectory_id` of the branch that it left."""
    ending: str | None = None
    reward: float | None = None
    troubles: list[Trouble] = []


class Atif(msgspec.Struct, omit_defaults=True):
    """A document."""

    schema_version: str
    session_id: str
    trajectory_id: str
    agent: Agent
    steps: list[Step]
    final_metrics: FinalMetrics
    extra: Extra
    notes: str | None = None
    subagent_trajectories: list["Atif"] | None = None
