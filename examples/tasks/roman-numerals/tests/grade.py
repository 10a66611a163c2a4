"""Runs each hidden case in /app/roman.py and writes the share that passes."""

import subprocess
import sys
from pathlib import Path

CASES = [
    ("to_roman(1)", "I"),
    ("to_roman(4)", "IV"),
    ("to_roman(9)", "IX"),
    ("to_roman(14)", "XIV"),
    ("to_roman(49)", "XLIX"),
    ("to_roman(400)", "CD"),
    ("to_roman(1994)", "MCMXCIV"),
    ("to_roman(3999)", "MMMCMXCIX"),
    ("to_roman(0)", ValueError),
    ("to_roman(4000)", ValueError),
    ("from_roman('III')", 3),
    ("from_roman('XLII')", 42),
    ("from_roman('CDXLIV')", 444),
    ("from_roman('MMXXIV')", 2024),
    ("from_roman('MMMCMXCIX')", 3999),
    ("from_roman('IIII')", ValueError),
    ("from_roman('VX')", ValueError),
    ("from_roman('IXI')", ValueError),
    ("from_roman('mc')", ValueError),
    ("from_roman('')", ValueError),
]

# A child process runs the code, so that nothing it does can end or change the grader.
CHILD = """
import sys
sys.path.append("/app")
import roman
for number, call in enumerate(sys.argv[1:]):
    try:
        answer = repr(eval("roman." + call))
    except Exception as error:
        answer = type(error).__name__
    print(f"\\ncase {number} {answer}", flush=True)
"""


def answers():
    """What the module answers, by the number of the case; what else it prints does not count."""
    calls = [call for call, _ in CASES]
    command = [sys.executable, "-B", "-c", CHILD, *calls]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        print("the module ran for more than 20 s")
        return {}
    if done.returncode != 0:
        print("the module could not be used:", *done.stderr.strip().splitlines()[-1:])
    lines = (line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("case "))
    return {words[1]: words[2] for words in lines if len(words) == 3}


found = answers()
passed = 0
for number, (call, expected) in enumerate(CASES):
    answer = found.get(str(number), "no answer")
    right = expected.__name__ if isinstance(expected, type) else repr(expected)
    passed += answer == right
    print(f"{'ok  ' if answer == right else 'FAIL'} {call}: {answer}, right is {right}")
print(f"{passed} of {len(CASES)} cases pass")
Path("/logs/verifier/reward.txt").write_text(f"{passed / len(CASES)}\n")
