"""State of a simulated script: variables, status, rewards and failed fetches."""

import json
import math
import re
from dataclasses import dataclass, replace
from typing import cast

from plimsoll.tasks.shell.options import expand

__all__ = ["NONZERO", "UNKNOWN", "State", "is_known", "reward_file_type", "reward_value"]

UNKNOWN = "?"
"""A text that is known only at run time."""
NONZERO = "<nonzero>"
"""The exit status of a failed command."""
REWARD_PATH = re.compile(r"(?:^|.*/)reward\.(txt|json)")
STATUS = re.compile(r"\$\?|\$\{\?\}")
PIPE_STATUS = re.compile(r"\$\{PIPESTATUS\[(\d+)\]\}")


@dataclass(frozen=True, slots=True)
class State:
    """The state after one possible path through a script."""

    status: bool | None = True
    """Whether the last command succeeded; None if unknown."""
    env: tuple[tuple[str, str], ...] = ()
    txt: str | None = None
    """Contents of `reward.txt`; None if it is not written."""
    json: str | None = None
    out: str = UNKNOWN
    """Output of the last command."""
    errexit: bool = False
    pipefail: bool = False
    traps: tuple[tuple[str, str], ...] = ()
    failed: frozenset[int] = frozenset()
    """Failed fetches that the script has not compensated for."""
    missing: frozenset[str] = frozenset()
    """Programs and paths that are missing because of failed fetches."""
    flow: str = ""
    """`exit`, `return` or `break` after such a command."""
    tested: bool = False
    """A test or check has run."""
    parts: tuple[bool | None, ...] = ()
    """Statuses of the parts of the last pipeline."""

    @property
    def reward(self) -> float | None:
        """The reward in the reward files; None if it is unknown or not a number."""
        return reward_value(self.txt, self.json)

    @property
    def has_reward(self) -> bool:
        return self.txt is not None or self.json is not None

    def value(self, text: str) -> str:
        """Expand the known values in a word."""
        code = {True: "0", False: NONZERO, None: "$?"}
        text = STATUS.sub(code[self.status].replace("\\", ""), text)

        def part(found: re.Match[str]) -> str:
            at = int(found[1])
            return code[self.parts[at]] if at < len(self.parts) else found[0]

        return expand(PIPE_STATUS.sub(part, text), dict(self.env))

    def with_variable(self, name: str, value: str) -> "State":
        env = {key: old for key, old in self.env if key != name}
        if is_known(value):
            env[name] = value
        return replace(self, env=tuple(sorted(env.items())))


def is_known(text: str) -> bool:
    """Whether a text contains no expansions."""
    return text != UNKNOWN and "$" not in text and "`" not in text


def reward_file_type(path: str) -> str | None:
    """Return `txt` or `json` for the path of a reward file; None for any other path."""
    match = REWARD_PATH.fullmatch(path)
    return match[1] if match else None


def reward_value(txt: str | None, as_json: str | None) -> float | None:
    """Return the reward by the rules of the format: `reward.json` takes precedence."""
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
