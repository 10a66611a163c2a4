"""Exports trajectories as ATIF 1.8, the Agent Trajectory Interchange Format of Harbor.

A document holds one branch: the main one, with the others embedded as `subagent_trajectories`, each
with its own `trajectory_id` and all with the same `session_id`. Steps that a branch shares with the
branch it left are marked `is_copied_context`, so that they are not trained on twice. A tool's
result is an observation of the step that called the tool.
"""

import mimetypes
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from plimsoll.core.errors import TrajectoryError
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.trajectories.blobs import blob_path, media_type
from plimsoll.trajectories.export.conversations import (
    Conversation,
    ConversationMessage,
    choose_branches,
    conversations,
    main_branch,
)
from plimsoll.trajectories.messages import Image, Message, Part, Text, ToolCall
from plimsoll.trajectories.records import Exchange, Trouble
from plimsoll.trajectories.token_sequence import unpack_ids, unpack_logprobs
from plimsoll.trajectories.trajectory import Trajectory

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
    "to_atif",
]

VERSION = "ATIF-v1.8"


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """Text beside an image."""

    text: str


class ImageSource(msgspec.Struct):
    """The location of an image: a file, or a URL."""

    media_type: str
    path: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image"):
    """An image."""

    source: ImageSource


Content = str | list[TextPart | ImagePart]


class Agent(msgspec.Struct, omit_defaults=True):
    """The agent."""

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
    """The result of a tool call."""

    source_call_id: str | None = None
    content: Content | None = None


class Observation(msgspec.Struct):
    """The results of a step's tool calls."""

    results: list[Result]


class MetricsExtra(msgspec.Struct, omit_defaults=True):
    """Values that the format has no field for."""

    version: str
    finish: str
    dialect: str
    seconds: float
    token_versions: list[tuple[str, int]] | None = None
    """Runs of (version, number of the answer's tokens), in order."""
    untrainable: str = ""


class Metrics(msgspec.Struct, omit_defaults=True):
    """Token figures of an answer."""

    extra: MetricsExtra
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class Step(msgspec.Struct, omit_defaults=True):
    """A message, with its tool calls and their results."""

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
    """Values that the format has no field for."""

    about: dict[str, str]
    branch: int
    reason: str
    """The way in which the branch starts."""
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


UNKNOWN = "unknown"
MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""The image types of the format."""
BLOBS = Path("blobs")
"""The folder of large images, relative to the run's directory."""


def to_atif(
    trajectory: Trajectory, *, branch: int | None = None, reward: float | None = None
) -> Atif:
    """The main branch with all others embedded, or one branch alone."""
    branches = conversations(trajectory)
    if not branches:
        raise TrajectoryError("the trajectory has no answer, and ATIF has no empty documents")
    main = main_branch(branches) if branch is None else choose_branches(branches, branch)[0]
    document = _document(trajectory, main)
    document.extra.reward = reward
    document.extra.troubles = list(trajectory.troubles)
    if not trajectory.complete:
        document.notes = f"unfinished: {trajectory.problem}"
    others = [one for one in branches if one is not main]
    if branch is None and others:
        document.subagent_trajectories = [_document(trajectory, one) for one in others]
    return document


def _document(trajectory: Trajectory, branch: Conversation) -> Atif:
    opened = trajectory.opened
    steps = _steps(trajectory, branch.messages)
    return Atif(
        schema_version=VERSION,
        session_id=opened.session,
        trajectory_id=_id(trajectory, branch.number),
        agent=_agent(trajectory, branch.exchanges[-1]),
        steps=steps,
        final_metrics=FinalMetrics(
            total_steps=len(steps),
            total_prompt_tokens=_sum(one.prompt_tokens for one in branch.exchanges),
            total_completion_tokens=_sum(one.answer_tokens for one in branch.exchanges),
        ),
        extra=Extra(
            about=opened.about,
            branch=branch.number,
            reason=branch.reason,
            left=None if branch.origin is None else _id(trajectory, branch.origin),
            ending=trajectory.closed.ending if trajectory.closed else None,
        ),
    )


def _id(trajectory: Trajectory, branch: int) -> str:
    return f"{trajectory.opened.session}.{branch}"


def _agent(trajectory: Trajectory, last: Exchange) -> Agent:
    about = trajectory.opened.about
    return Agent(
        name=about.get("agent", UNKNOWN),
        version=about.get("agent_version", UNKNOWN),
        model_name=about.get("model"),
        tool_definitions=trajectory.tools_of(last),
    )


def _steps(trajectory: Trajectory, messages: Sequence[ConversationMessage]) -> list[Step]:
    steps: list[Step] = []
    for one in messages:
        if one.message.role == "tool" and steps:
            _observe(steps, one.message)
        else:
            steps.append(_step(trajectory, one, len(steps) + 1))
    return steps


def _observe(steps: Sequence[Step], message: Message) -> None:
    """Add a tool's result to the latest step that made the call; if none did, to the last step."""
    for step in reversed(steps):
        if message.call_id in {call.tool_call_id for call in step.tool_calls or ()}:
            result = Result(source_call_id=message.call_id, content=_content(message.parts))
            break
    else:
        step, result = steps[-1], Result(content=_content(message.parts))
    step.observation = step.observation or Observation([])
    step.observation.results.append(result)


def _step(trajectory: Trajectory, messages: ConversationMessage, number: int) -> Step:
    message, exchange = messages.message, messages.exchange
    step = Step(number, _source(message), _content(message.parts))
    if messages.copied or (message.role == "assistant" and exchange is None):
        step.is_copied_context = True
    if message.role == "tool":
        # A result before any call becomes a step of its own.
        step.message, step.observation = "", Observation([Result(content=step.message)])
    elif message.role == "assistant":
        step.reasoning_content = message.reasoning or None
        step.tool_calls = [_call(call) for call in message.calls] or None
    if exchange is not None:
        step.timestamp = datetime.fromtimestamp(exchange.at, UTC).isoformat()
        step.llm_call_count = 1
        step.metrics = _metrics(trajectory, exchange)
    return step


def _source(message: Message) -> str:
    if message.role == "assistant":
        return "agent"
    return "user" if message.role == "user" else "system"


def _call(call: ToolCall) -> Call:
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        # The policy's arguments are not a JSON object; the format has no other field for them.
        return Call(call.id, call.name, {}, {"unparsed_arguments": call.arguments})
    return Call(call.id, call.name, arguments)


def _metrics(trajectory: Trajectory, exchange: Exchange) -> Metrics:
    metrics = Metrics(
        prompt_tokens=exchange.prompt_tokens,
        completion_tokens=exchange.answer_tokens,
        extra=MetricsExtra(
            version=str(exchange.version),
            finish=exchange.finish,
            dialect=exchange.dialect,
            seconds=exchange.seconds,
            untrainable=exchange.untrainable,
        ),
    )
    if (tokens := exchange.tokens) is not None:
        metrics.prompt_token_ids = list(trajectory.ids_of(exchange))
        metrics.completion_token_ids = list(unpack_ids(tokens.answer))
        metrics.logprobs = list(unpack_logprobs(tokens.logprobs)) or None
        metrics.extra.token_versions = [(str(one), count) for one, count in tokens.versions]
    return metrics


def _content(parts: Sequence[Part]) -> Content:
    """A string for text only. Parts that the format cannot hold are described in text."""
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part) for part in parts]


def _part(part: Part) -> TextPart | ImagePart:
    match part:
        case Text(text):
            return TextPart(text)
        case Image(url):
            kind = media_type(url) or mimetypes.guess_type(url)[0]
            path = str(blob_path(url, BLOBS) or url)
            if kind not in MEDIA_TYPES:
                return TextPart(f"[image: {path}]")
            return ImagePart(ImageSource(kind, path))
        case _:
            return TextPart(f"[{bytes(part.value).decode('utf-8', 'replace')}]")


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum; None if a count is unknown."""
    counted = list(counts)
    return None if None in counted else sum(count for count in counted if count is not None)
