"""A look at all replicas of a policy before they are used as one.

What one of them can do is asked of all. A replica that can do less, or serves something else,
would spoil its share of the sessions without a word.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from plimsoll.core.errors import PolicyError
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.gateway.upstreams.failures import Failed
from plimsoll.gateway.upstreams.probe import examine

__all__ = ["survey"]

log = logging.getLogger(__name__)

ALIKE = {
    "model": "the model",
    "context": "the context",
    "tools": "tools",
    "logprobs": "log probabilities",
    "token_ids": "token ids of answers",
    "prompt_ids": "token ids of prompts",
    "streams": "streams",
    "stream_usage": "the usage in streams",
    "count": "counting of tokens",
}
"""What must be the same of all. Whether the ids of a stream are complete may hang on what was
said in it: there the least counts."""


async def survey(
    bases: Sequence[str], model: str | None = None, key: str | None = None
) -> Capabilities:
    """What may be asked of every replica. One that is away is warned of: it is used once it is
    there. Raises `PolicyError` where none serves, and where one is not like the others."""
    seen = await _look_at_all(bases, model, key)
    if _unlike(seen):
        # Under load a server may fail at this or that for a moment: what two looks find counts.
        seen = await _look_at_all(bases, model, key)
    serving = _serving(seen)
    if not serving:
        raise PolicyError("; ".join(map(_problem, seen)))
    if problem := _unlike(seen):
        raise PolicyError(problem)
    for each in seen:
        if _is_away(each):
            log.warning("%s; it is left out until it is up", _problem(each))
    return replace(
        serving[0],
        stream_ids=all(each.stream_ids for each in serving),
        tool_stream_ids=all(each.tool_stream_ids for each in serving),
    )


async def _look_at_all(
    bases: Sequence[str], model: str | None, key: str | None
) -> list[Capabilities | Failed]:
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(_look(base, model, key)) for base in bases]
    return [look.result() for look in looks]


async def _look(base: str, model: str | None, key: str | None) -> Capabilities | Failed:
    try:
        return await examine(base, model, key)
    except Failed as failure:
        return failure


def _problem(seen: Capabilities | Failed) -> str:
    return seen.message if isinstance(seen, Failed) else seen.problem


def _is_away(seen: Capabilities | Failed) -> bool:
    """Whether it may be another time: it cannot be reached, is busy, or does not answer."""
    return isinstance(seen, Failed) and (seen.again or seen.kind == "timeout")


def _serving(seen: Sequence[Capabilities | Failed]) -> list[Capabilities]:
    return [each for each in seen if isinstance(each, Capabilities) and not each.problem]


def _unlike(seen: Sequence[Capabilities | Failed]) -> str:
    """What is wrong with one that is there while another serves."""
    serving = _serving(seen)
    if not serving:
        return ""
    first = serving[0]
    for each in seen:
        if _problem(each) and not _is_away(each):
            return f"{_problem(each)} (the replica at {first.url} serves)"
    return next((told for other in serving[1:] if (told := _differing(first, other))), "")


def _differing(first: Capabilities, other: Capabilities) -> str:
    differing = [
        f"{name} ({_said(getattr(other, field))}, not {_said(getattr(first, field))})"
        for field, name in ALIKE.items()
        if getattr(other, field) != getattr(first, field)
    ]
    if not differing:
        return ""
    return (
        f"the policy at {other.url} is not like the one at {first.url}: it differs in "
        f"{', '.join(differing)}; start all replicas alike, or leave one out"
    )


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not told" if value is None else str(value)
