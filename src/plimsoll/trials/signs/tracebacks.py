"""Python failures in an output stream, as printed by the interpreter or pytest, with frames.

The blame for a failed import depends on the importing file: the deepest frame that is not in
a library decides.
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from plimsoll.trials.signs.deliverables import Deliverables
from plimsoll.trials.signs.output import Output

__all__ = ["Failure", "Frame", "Owner", "PathOwners", "failures"]

_FRAME = re.compile(r'\s*File "([^"\n]{1,500})", line (\d{1,9})(?:, in (\S{1,200}))?')
_SHORT_FRAME = re.compile(r"(\S[^\n:]{0,500}):(\d{1,9}): in (\S{1,200})")
_RAISED = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: (.{0,1000})|$)")
_PREFIX = re.compile(r"E {2,3}|# ")
_TEST_MODULE = re.compile(
    r"^ImportError while (?:importing test module|loading conftest) '(/[^'\n]{1,500})'", re.M
)
_ROOT = re.compile(r"^rootdir: (/[^\s,]{0,500})", re.M)
_COLLECTING = re.compile(r"^_+ ERROR collecting (\S{1,500}) _+$", re.M)
_SHOWN = re.compile(r"^ERROR (\w[^\s:]{0,500}\.py)", re.M)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<frozen |/python\d+\.zip/")
_LOOKS_LIKE_TESTS = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test|conftest)\.py$")


class Owner(StrEnum):
    """The owner of a file."""

    GRADER = "grader"
    WORK = "work"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class Frame:
    path: str
    line: int
    """0 if unknown."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One exception: its type, message, frames and position in the output."""

    kind: str
    message: str
    frames: tuple[Frame, ...]
    position: int
    """Start of the line with the exception."""
    native: bool
    """Printed by the interpreter, not by pytest."""


@dataclass(slots=True)
class _PartialFailure:
    """A failure whose frames are still being parsed."""

    native: bool
    prefix: str = ""
    frames: list[Frame] = field(default_factory=list[Frame])


def failures(output: Output) -> list[Failure]:
    """Return all exceptions with at least one frame, in one pass over the lines."""
    if not any(word in output.text for word in ('File "', ": in ", "ERROR collecting")):
        return []
    found: list[Failure] = []
    current: _PartialFailure | None = None
    for position, line in _lines(output.text):
        bare, prefix = _unprefixed(line)
        if bare.startswith("Traceback (most recent call last)"):
            current = _PartialFailure(native=True, prefix=prefix)
            continue
        if line.startswith(("_____", "=====")):
            # With --tb=line pytest prints only the collected module.
            header = _COLLECTING.match(line)
            current = (
                _PartialFailure(native=False, frames=[Frame(header[1], 0)]) if header else None
            )
        elif short := _SHORT_FRAME.match(line):
            if current is None or current.native:
                current = _PartialFailure(native=False)
            current.frames.append(Frame(short[1], int(short[2])))
        elif full := _FRAME.match(bare):
            # A syntax error of a script is printed without the header.
            current = current or _PartialFailure(native=True, prefix=prefix)
            current.frames.append(Frame(full[1], int(full[2])))
        elif current and (raised := _raised(current, line, bare)):
            if current.frames:
                message = raised[2] or ""
                found.append(
                    Failure(raised[1], message, tuple(current.frames), position, current.native)
                )
            current = None
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    position = 0
    for line in text.split("\n"):
        yield position, line[:2000]
        position += len(line) + 1


def _unprefixed(line: str) -> tuple[str, str]:
    match = _PREFIX.match(line)
    return (line[match.end() :], match[0]) if match else (line, "")


def _raised(current: _PartialFailure, line: str, bare: str) -> re.Match[str] | None:
    """Match the line with the exception: aligned with the header, or after pytest's `E`."""
    if current.native and not current.prefix:
        return _RAISED.match(line)
    if not current.native and not line.startswith("E "):
        return None
    return _RAISED.match(bare)


class PathOwners:
    """Owners of paths. Relative paths are resolved with the test modules that pytest prints."""

    def __init__(self, text: str, deliverables: Deliverables) -> None:
        self._deliverables = deliverables
        roots = _ROOT.findall(text)
        self._modules: set[str] = set(_TEST_MODULE.findall(text))
        for root in roots[:1]:
            self._modules |= {f"{root.rstrip('/')}/{name}" for name in _COLLECTING.findall(text)}
        self._folder = self._current_folder(_SHOWN.findall(text))

    def _current_folder(self, shown: list[str]) -> str | None:
        """Return pytest's working directory, from relative paths and full module paths."""
        for path in shown[:20]:
            for module in self._modules:
                if module.endswith("/" + path):
                    return module.removesuffix(path)
        return None

    def owner(self, path: str) -> Owner:
        if _LIBRARY.search(path):
            return Owner.LIBRARY
        if path in ("<string>", "<stdin>"):  # inline in a script: python -c, python - <<EOF
            return Owner.GRADER
        if path.startswith("/"):
            return self._absolute(path)
        tail = re.sub(r"^(?:\.{1,2}/)+", "", path)
        for module in self._modules:
            if module.endswith("/" + tail):
                return self._absolute(module)
        if self._folder:
            return self._absolute(posixpath.normpath(self._folder + path))
        mine = tail.startswith("tests/") or _LOOKS_LIKE_TESTS.search(tail)
        return Owner.GRADER if mine else Owner.WORK

    def _absolute(self, path: str) -> Owner:
        if path.startswith("/tests/"):
            return Owner.GRADER
        if path.startswith("/opt/") and not self._deliverables.mentions_folder(path):
            return Owner.GRADER
        return Owner.WORK

    def culprit(self, failure: Failure) -> tuple[Owner, Frame]:
        """Return the deepest frame outside of libraries; the deepest of all if there is none."""
        outermost = failure.frames[0]
        for frame in reversed(failure.frames):
            # Inline code belongs to the grader only if it is the outermost frame.
            if frame.path.startswith("<") and frame is not outermost:
                continue
            if (owner := self.owner(frame.path)) is not Owner.LIBRARY:
                return owner, frame
        return Owner.LIBRARY, failure.frames[-1]
