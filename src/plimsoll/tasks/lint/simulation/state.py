"""Where a grader's script stands at some moment, as far as that can be known beforehand."""

import json
import math
import re
from dataclasses import dataclass, replace
from typing import cast

from plimsoll.tasks.shell.options import expand

__all__ = ["NONZERO", "UNKNOWN", "State", "is_known", "reward_name", "reward_value"]

UNKNOWN = "?"
"""A text that only a run can tell."""
NONZERO = "<nonzero>"
"""The exit status of something that failed."""
REWARD_PATH = re.compile(r"(?:^|.*/)reward\.(txt|json)")
STATUS = re.compile(r"\$\?|\$\{\?\}")
PIPE_STATUS = re.compile(r"\$\{PIPESTATUS\[(\d+)\]\}")


@dataclass(frozen=True, slots=True)
class State:
    """One way that a script may have gone so far."""

    status: bool | None = True
    """Whether the last command succeeded; None where it may be either."""
    env: tuple[tuple[str, str], ...] = ()
    txt: str | None = None
    """What `reward.txt` holds; None while it is not written."""
    json: str | None = None
    out: str = UNKNOWN
    """What the last command printed."""
    errexit: bool = False
    pipefail: bool = False
    traps: tuple[tuple[str, str], ...] = ()
    failed: frozenset[int] = frozenset()
    """The fetches that failed on the way here and were not made up for."""
    missing: frozenset[str] = frozenset()
    """Programs and paths that are not there because of it."""
    flow: str = ""
    """`exit`, `return` or `break` once one of them has been met."""
    tested: bool = False
    """Something has been checked or run that a reward could be about."""
    parts: tuple[bool | None, ...] = ()
    """The statuses of the last pipeline."""

    @property
    def reward(self) -> float | None:
        """The number that stands in the reward file; None where it is not known to be one."""
        return reward_value(self.txt, self.json)

    @property
    def has_reward(self) -> bool:
        return self.txt is not None or self.json is not None

    def value(self, text: str) -> str:
        """A word with what is known put in."""
        code = {True: "0", False: NONZERO, None: "$?"}
        text = STATUS.sub(code[self.status].replace("\\", ""), text)

        def part(found: re.Match[str]) -> str:
            at = int(found[1])
            return code[self.parts[at]] if at < len(self.parts) else found[0]

        return expand(PIPE_STATUS.sub(part, text), dict(self.env))

    def with_variable(self, name: str, value: str) -> "State":
        env = {key: known for key, known in self.env if key != name}
        if is_known(value):
            env[name] = value
        return replace(self, env=tuple(sorted(env.items())))


def is_known(text: str) -> bool:
    """Nothing in a text is left for a shell to fill in."""
    return text != UNKNOWN and "$" not in text and "`" not in text


def reward_name(path: str) -> str | None:
    """`txt` or `json` where a path is a reward file."""
    match = REWARD_PATH.fullmatch(path)
    return match[1] if match else None


def reward_value(txt: str | None, as_json: str | None) -> float | None:
    """The reward by the rules of the format: `reward.json` comes first."""
    if as_json is not None:
        return _json_value(as_json)
    if txt is None or not is_known(txt):
        return None
    try:
        number = float(txt)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _json_value(text: str) -> float | None:
    if not is_known(text):
        return None
    try:
        found: object = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    table = cast(dict[str, object], found)
    values = [v for v in table.values() if isinstance(v, int | float) and not isinstance(v, bool)]
    if not values or len(values) != len(table):
        return None
    main = table.get("reward")
    return float(main) if isinstance(main, int | float) else sum(values) / len(values)
