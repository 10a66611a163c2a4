"""Policy usage of a trial: turns and tokens."""

from dataclasses import dataclass

__all__ = ["PolicyUsage"]


@dataclass(frozen=True, slots=True)
class PolicyUsage:
    """Policy usage of a trial. All prompt tokens count, repeated prefixes too."""

    turns: int
    prompt_tokens: int
    answer_tokens: int
