"""Hostile file names and reward files: no trial ends as a bug.

Names and files are random, from parts that often break programs. The seed of each case is its
number, so that a failed case can be repeated.
"""

import json
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from plimsoll.core.endings import Ending
from plimsoll.runs.files.results import row_of
from plimsoll.sandboxes.trees.removal import remove_folder
from plimsoll.trials.judge import Grading, judge
from plimsoll.trials.record import TrialRecord, VerdictFile
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void
from plimsoll.workers.messages import Order, Result

# Parts of file names; a name has no slash and no NUL.
PIECES = [b"\xff", b"\xed\xa0\x80", b"\n", b"\r", b"\x1b[2J", b"\x07", "\u202e".encode(), b" ",
          b"-rf", b"*", b"'", b'"', b"\\", b"%s", b"{}", b"reward", b".json", b".txt", "é".encode(),
          b"a" * 60, b"..", b"~", b"$(x)", b"@", b":"]  # fmt: skip

MAKE = r"""
import os, random, socket, sys
where, seed = sys.argv[1], int(sys.argv[2])
pieces = [bytes.fromhex(x) for x in sys.argv[3].split(",")]
chance = random.Random(seed)
def name():
    while True:
        joined = b"".join(chance.choices(pieces, k=chance.randint(1, 4)))[:250]
        if joined not in (b".", b".."):
            return joined
def fill(depth):
    for _ in range(chance.randint(1, 6)):
        at, kind = name(), chance.randint(0, 8)
        try:
            if kind == 0:
                os.symlink(name() if chance.random() < .5 else b"/etc/" + name(), at)
            elif kind == 1:
                os.mkfifo(at)
            elif kind == 2:
                s = socket.socket(socket.AF_UNIX); s.bind(at[:100]); s.close()
            elif kind == 3:
                with open(at, "wb") as f: f.truncate(chance.choice([0, 1, 1 << 30]))
            elif kind == 4:
                open(at, "wb").write(b"x" * 100); os.link(at, at[:200] + b"2")
            elif kind == 5:
                open(at, "wb").write(b"x"); os.chmod(at, chance.choice([0, 0o4755, 0o6777, 0o644]))
            elif depth < 40:
                back = os.open(b".", os.O_RDONLY)
                os.mkdir(at)
                os.chdir(at)
                fill(depth + chance.choice([3, 8]))
                os.fchdir(back)
                os.close(back)
                if chance.random() < .1: os.chmod(at, 0)
            else:
                open(at, "wb").write(b"x")
        except OSError:
            pass
os.makedirs(where, exist_ok=True); os.chdir(where)
fill(0)
if seed % 4 == 0:  # deeper than any path may be long
    for _ in range(30):
        at = name()[:20] + b"d" * 180
        os.mkdir(at); os.chdir(at)
    open(b"end\xff", "wb").close()
if seed == 1:  # and deeper than any stack
    for _ in range(1400):
        os.mkdir(b"d"); os.chdir(b"d")
"""
WORDS = ",".join(piece.hex() for piece in PIECES)

VALUES = ["0", "1", "-0.0", "1e999", "-1e999", "NaN", "Infinity", "9" * 400, "9" * 5000, "null",
          "true", '"1"', '"\\udcff"', '"\\ud83d"', "[1]", "{}", "1.0000000000000001", "1e-400",
          "[" * 900 + "]" * 900, '{"reward": ' * 600 + "1" + "}" * 600, "+1", "0x1", "", "\udcff",
          "\\", "1\x00", '"' + "\u202e" * 9 + '"']  # fmt: skip
KEYS = ["reward", "x\\udcff", "x\udcff", "\\ud83d", "", " ", "\\u0000", "\\u001b[2J", "\\n", "é",
        "x" * 3000, "reward ", "\\u202e"]  # fmt: skip


def check(verdict: Verdict, folder: Path) -> None:
    """Check that the verdict is not a bug and that its files can be read."""
    assert not (isinstance(verdict, Void) and verdict.cause is Cause.BUG), verdict
    assert not (folder / "bug.txt").exists()
    order = Order(ticket="g/0.0", task="task", name="task", attempt=1, folder="")
    row = row_of(order, Result(ticket="g/0.0", verdict=verdict, seconds=1.0), folder="trials/t.1")
    assert msgspec.json.decode(msgspec.json.encode(row), type=type(row)) == row
    for text in (*_texts(verdict), (folder / "verdict.json").read_text("utf-8").replace("\n", "")):
        assert text.isprintable(), ascii(text)
    read = msgspec.json.decode((folder / "verdict.json").read_bytes(), type=VerdictFile)
    assert read.verdict == verdict
    for notes in (path for path in _walk(folder) if path.name == "not-kept.txt"):
        assert all(line.isprintable() for line in notes.read_text("utf-8").splitlines())


def _texts(verdict: Verdict) -> list[str]:
    texts = [text for seen in verdict.evidence for text in (seen.what, seen.where)]
    return [*texts, *(verdict.rewards if isinstance(verdict, Graded) else [verdict.reason])]


@pytest.fixture(autouse=True)
def _removed(tmp_path: Path) -> Iterator[None]:
    """Remove trees that are too deep for pytest."""
    yield
    remove_folder(tmp_path / "trials")


def make(where: str, seed: int) -> str:
    return f"python3 - {where} {seed} {WORDS} <<'END-OF-IT'\n{MAKE}\nEND-OF-IT\n"


@pytest.mark.every_backend
@pytest.mark.parametrize("seed", range(4))
async def test_trees_with_hostile_names_of_an_agent_are_kept_or_skipped(write_task, run, seed):
    toml = 'artifacts = ["/app/out", { source = "/app/some", exclude = ["*a*", "*.txt"] }]\n'
    folders = ("/logs/artifacts", "/logs/agent", "/app/out", "/app/some")
    agent = "".join(make(where, seed + 4 * at) for at, where in enumerate(folders))
    ran = await run(write_task(toml=toml), agent)
    assert isinstance(ran.verdict, Graded), ran.verdict
    check(ran.verdict, ran.folder)
    for path in _walk(ran.folder):
        mode = path.lstat().st_mode
        assert not mode & 0o7000 or stat.S_ISLNK(mode), path
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), path
    assert sum(path.lstat().st_blocks for path in _walk(ran.folder)) * 512 < 64 << 20


@pytest.mark.every_backend
@pytest.mark.parametrize("seed", range(2))
async def test_trees_with_hostile_names_of_a_test_are_harmless(write_task, run, seed):
    ran = await run(write_task(test=make("/logs/verifier", seed) + "exit 3\n"))
    check(ran.verdict, ran.folder)


@pytest.mark.parametrize("name", [b"reward\xff.txt", b"reward\n.json", b"\x1b[2Jreward.txt"])
async def test_a_misnamed_reward_is_a_fault_of_the_grader(write_task, run, name):
    escaped = "".join(f"\\x{byte:02x}" for byte in name)
    ran = await run(write_task(test=f"echo 1 > $'/logs/verifier/{escaped}'\n"))
    assert isinstance(ran.verdict, Void)
    assert ran.verdict.cause is Cause.GRADER
    assert "misspelt" in ran.verdict.reason
    check(ran.verdict, ran.folder)


async def test_a_lone_surrogate_as_a_key_keeps_the_reward(write_task, run):
    values = dict(zip(("reward", "x\udcff", "x\ud83d", "x\\xff"), (1, 0, 0.5, 0.25), strict=True))
    text = json.dumps(values)
    ran = await run(write_task(test=f"cat > /logs/verifier/reward.json <<'E'\n{text}\nE\n"))
    assert isinstance(ran.verdict, Graded)
    assert ran.verdict.reward == 1.0
    assert sorted(ran.verdict.rewards.values()) == [0.0, 0.25, 0.5, 1.0]
    check(ran.verdict, ran.folder)


def test_reward_files_and_reports_of_any_content_are_judged(tmp_path: Path):
    """Hundreds of cases without a sandbox; the judge only sees bytes."""
    for seed in range(600):
        chance = random.Random(seed)
        verdict = judge(_grading(chance), Ending.SUBMITTED)
        record = TrialRecord(tmp_path / "trial")
        record.write_verdict(_file(verdict))
        check(verdict, record.folder)


def _grading(chance: random.Random) -> Grading:
    files = {
        "reward.json": _json(chance),
        "reward.txt": chance.choice(VALUES).encode("utf-8", "surrogateescape"),
        "ctrf.json": _report(chance),
        "junit.xml": _junk(chance),
        os.fsdecode(b"".join(chance.choices(PIECES, k=2))): _junk(chance),
    }
    chosen = {name: data for name, data in files.items() if chance.random() < 0.6}
    return Grading(
        exit_code=chance.choice([0, 1, 127]),
        signal=None,
        timed_out=False,
        timeout=10.0,
        stdout=_junk(chance).decode("utf-8", "replace"),
        stderr=_junk(chance).decode("utf-8", "replace"),
        files=chosen,
        instruction="Do it.",
        reward_range=(0.0, 1.0),
    )


def _json(chance: random.Random) -> bytes:
    pairs = [
        f'"{chance.choice(KEYS)}": {chance.choice(VALUES)}' for _ in range(chance.randint(0, 3))
    ]
    text = "{" + ", ".join(pairs) + "}"
    return (text if chance.random() < 0.8 else chance.choice(VALUES)).encode(
        "utf-8", "surrogateescape"
    )


def _report(chance: random.Random) -> bytes:
    value = chance.choice(VALUES)
    tests = ",".join(_test(chance, value) for _ in range(chance.randint(0, 3)))
    text = (
        f'{{"results": {{"summary": {{"tests": {value}, "passed": {value}}}, "tests": [{tests}]}}}}'
    )
    return (text if chance.random() < 0.8 else value).encode("utf-8", "surrogateescape")


def _test(chance: random.Random, value: str) -> str:
    name, message = chance.choice(KEYS), chance.choice(KEYS)
    status = chance.choice(["1", value, '"passed"', '"failed"'])
    return f'{{"name": "{name}", "status": {status}, "message": "{message}"}}'


def _junk(chance: random.Random) -> bytes:
    lines = [
        b'<testsuite tests="9999999999999999999999" failures="x"><testcase name="\xff\x1b"/>',
        b"FAILED ../\xff\x1b[2J::x - E\n",
        b'Traceback (most recent call last):\n  File "/tests/\xff.py", line 99999999999999, in x\n'
        b"ModuleNotFoundError: No module named '\xed\xa0\x80\x1b'\n",
        b"==== 99999999999999999999999 passed in 1s ====\n",
        b"curl: (6) Could not resolve host: \xff\x1b[31m\n",
        b"/tests/test.sh: line 3: \xe2\x80\xae\x07: command not found\n",
        *PIECES,
    ]
    return b"".join(chance.choices(lines, k=chance.randint(0, 4)))


def _file(verdict: Verdict) -> VerdictFile:
    return VerdictFile(
        task="task", attempt=1, agent="a", backend="b", verdict=verdict, steps={"main": verdict},
        ends={}, tests={}, seconds=1.0, phases={}, started=1.0,
    )  # fmt: skip


def _walk(folder: Path) -> list[Path]:
    found, waiting = list[Path](), [folder]
    while waiting:
        for path in waiting.pop().iterdir():
            found.append(path)
            if path.is_dir() and not path.is_symlink():
                waiting.append(path)
    return found
