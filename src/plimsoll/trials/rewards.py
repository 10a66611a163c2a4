"""Reward files of a grader: `reward.json` with an object of numbers, or `reward.txt` with one.

Nothing is guessed. A file that is not exactly a valid reward is a `NoReward` with a reason; it
never becomes a number.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from plimsoll.core.text import safe_line
from plimsoll.trials.verdicts import Evidence

__all__ = ["MAX_FILE_BYTES", "RESULT_FILES", "NoReward", "Reward", "read_reward"]

RESULT_FILES = ("reward.json", "reward.txt", "ctrf.json")
"""The files of a grader whose content is read: rewards, and the report of its test runner."""
MAX_FILE_BYTES = 64 * 1024
"""Bytes. A larger reward file is probably a log."""

_NEAR = 8
"""Maximum number of misnamed files that a verdict lists."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Reward:
    """A valid reward, all numbers of its file, and the name of the file."""

    value: float
    values: dict[str, float]
    file: str
    notes: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class NoReward:
    """The reason why there is no reward, with evidence."""

    reason: str
    evidence: tuple[Evidence, ...] = ()


class _BadFileError(Exception):
    """Carries a reason to `read_reward`; never leaves this module."""


def read_reward(files: Mapping[str, bytes], reward_range: tuple[float, float]) -> Reward | NoReward:
    """Return the reward in the files, or the reason why there is none."""
    if "reward.json" not in files and "reward.txt" not in files:
        return _no_file(files)
    try:
        return _read(files, reward_range)
    except _BadFileError as bad:
        return NoReward(str(bad), tuple(_held(files)))


def _read(files: Mapping[str, bytes], reward_range: tuple[float, float]) -> Reward:
    if "reward.json" not in files:
        value = _one_number(files["reward.txt"])
        _check_range("reward.txt", {"reward": value}, reward_range)
        return Reward(value, {"reward": value}, "reward.txt")
    values = _object(files["reward.json"])
    used, notes = _used(values)
    value = sum(used.values()) / len(used)
    if not math.isfinite(value):
        raise _BadFileError("the mean of the numbers in reward.json is not finite")
    if "reward.txt" in files:
        other = _one_number(files["reward.txt"])
        if not math.isclose(value, other, rel_tol=1e-6, abs_tol=1e-9):
            raise _BadFileError(f"reward.json says {value:g} and reward.txt says {other:g}")
    _check_range("reward.json", used, reward_range)
    return Reward(value, values, "reward.json", notes)


def _used(values: dict[str, float]) -> tuple[dict[str, float], tuple[Evidence, ...]]:
    """Select the numbers of the reward: the key `reward`, else all (their mean is the reward)."""
    if "reward" in values:
        return {"reward": values["reward"]}, ()
    if len(values) == 1:
        return values, ()
    names = ", ".join(_short(name) for name in [*values][:8]) + (", …" if len(values) > 8 else "")
    note = (
        "reward.json has no key `reward`; the reward is the mean of its "
        f"{len(values)} numbers ({names})"
    )
    return values, (Evidence(note, "verifier/reward.json"),)


def _object(data: bytes) -> dict[str, float]:
    text = _text("reward.json", data)
    try:
        parsed: Any = json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        raise _BadFileError(f"reward.json is not JSON (line {error.lineno}: {error.msg})") from None
    except (ValueError, RecursionError):
        raise _BadFileError("reward.json is not JSON that can be read") from None
    if not isinstance(parsed, dict):
        raise _BadFileError(f"reward.json holds {_kind(parsed)}, not an object of numbers")
    if not parsed:
        raise _BadFileError("reward.json holds an empty object")
    items = cast("dict[str, Any]", parsed)
    return {name: _finite(name, value) for name, value in items.items()}


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise _BadFileError(f"reward.json names `{_short(twice)}` more than once")
    return found


def _finite(name: str, value: Any) -> float:  # noqa: ANN401 - any JSON value
    # In Python bool is an int, but true is not a reward.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _BadFileError(f"`{_short(name)}` in reward.json is {_kind(value)}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _BadFileError(f"`{_short(name)}` in reward.json is not a finite number")
    return number + 0.0  # -0.0 becomes 0.0


def _one_number(data: bytes) -> float:
    text = _text("reward.txt", data).strip()
    if not _NUMBER.fullmatch(text):
        if text.lstrip("+-").lower() in {"nan", "inf", "infinity"}:
            raise _BadFileError(f"reward.txt holds {text}, which is not a finite number")
        raise _BadFileError(f'reward.txt holds "{_short(text)}", not one number')
    number = float(text)
    if not math.isfinite(number):
        raise _BadFileError(f"reward.txt holds {_short(text)}, which is not a finite number")
    return number + 0.0


def _text(file: str, data: bytes) -> str:
    if len(data) > MAX_FILE_BYTES:
        raise _BadFileError(f"{file} is {len(data):,} bytes long, too long to be a reward")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise _BadFileError(f"{file} is not UTF-8 text") from None
    if not text.strip():
        raise _BadFileError(f"{file} is empty")
    return text


def _check_range(file: str, used: Mapping[str, float], allowed: tuple[float, float]) -> None:
    low, high = allowed
    for name, value in used.items():
        if not low <= value <= high:
            # The suggested range includes both the declared range and the value.
            wider = f"[{min(low, value):g}, {max(high, value):g}]"
            named = "" if len(used) == 1 and name == "reward" else f" for `{_short(name)}`"
            raise _BadFileError(
                f"{file} holds {value:g}{named}, outside {low:g} to {high:g}; if it is meant, "
                f"declare metadata.reward_range = {wider} in task.toml"
            )


def _no_file(files: Mapping[str, bytes]) -> NoReward:
    reason = "the grader wrote neither reward.json nor reward.txt"
    near = sorted(name for name in files if name not in RESULT_FILES)
    if not near:
        return NoReward(reason)
    meant = "reward.json" if "js" in near[0].lower() else "reward.txt"
    seen = [Evidence(f"not read: {name}", f"verifier/{name}") for name in near[:_NEAR]]
    if len(near) > _NEAR:
        seen.append(Evidence(f"not read: {len(near) - _NEAR:,} more files", "verifier"))
    return NoReward(f"{reason}, but {_short(near[0])} (misspelt: {meant} is read)", tuple(seen))


def _held(files: Mapping[str, bytes]) -> list[Evidence]:
    return [
        Evidence(f'{name} held "{_short(files[name].decode("utf-8", "replace"))}"; not used',
                 f"verifier/{name}")
        for name in ("reward.json", "reward.txt")
        if name in files
    ]  # fmt: skip


def _kind(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the string "{_short(value)}"'
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else "a bare number"


def _short(text: str) -> str:
    """Shorten to one line of at most 40 characters."""
    return safe_line(text[:200], 40)
