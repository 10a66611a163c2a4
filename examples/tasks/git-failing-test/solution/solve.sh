#!/bin/bash
set -euo pipefail
cd /app
cat >durations/parse.py <<'END'
import re

SECONDS = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
WHOLE = re.compile(rf"\s*(?:{PART.pattern}\s*)+")


def parse(text):
    """The seconds of a duration such as `1h30m`, `2.5s` or `250ms`, as a float.

    Each part is a number and a unit: h, m, s or ms. Spaces around the whole text and between
    parts do not count. Anything else, an empty text included, is a ValueError.
    """
    if not WHOLE.fullmatch(text):
        raise ValueError(f"not a duration: {text!r}")
    parts = PART.findall(text)
    return float(sum(float(number) * SECONDS[unit] for number, unit in parts))
END
python3 -B -m unittest discover -s tests -t .
