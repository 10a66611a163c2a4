"""How long simulated rollouts take."""

import math
import random
import zlib
from typing import Literal

from plimsoll.core.errors import UsageError

__all__ = ["DURATIONS", "Duration", "chance", "draw", "named"]

Duration = Literal["constant", "lognormal", "stragglers", "hung"]
DURATIONS: dict[Duration, str] = {
    "constant": "all take 1",
    "lognormal": "median 1, a long tail (sigma 1)",
    "stragglers": "lognormal (sigma 0.3), and one in 20 takes 50 times as long",
    "hung": "lognormal (sigma 0.3), and one in 100 never ends",
}
"""The kinds, each in words for a person."""

_STRAGGLERS = 0.05
_HUNG = 0.01
_LONGER = 50.0


def named(name: str) -> Duration:
    """The kind of that name."""
    for kind in DURATIONS:
        if kind == name:
            return kind
    raise UsageError(f"no durations are called {name!r}: choose {', '.join(DURATIONS)}")


def chance(*parts: object) -> random.Random:
    """Random numbers that depend on these alone, whatever was drawn before."""
    return random.Random(zlib.crc32(repr(parts).encode()))


def draw(kind: Duration, rng: random.Random) -> float:
    """One rollout's duration, in units of the median."""
    match kind:
        case "constant":
            return 1.0
        case "lognormal":
            return rng.lognormvariate(0.0, 1.0)
        case "stragglers":
            slow = rng.random() < _STRAGGLERS
            return rng.lognormvariate(0.0, 0.3) * (_LONGER if slow else 1.0)
        case "hung":
            return math.inf if rng.random() < _HUNG else rng.lognormvariate(0.0, 0.3)
