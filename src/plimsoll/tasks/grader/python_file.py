"""Python file of the tests, parsed with `ast`: imports, calls, strings and error handling."""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Import", "PythonFile", "SyntaxProblem", "read_python"]

REWARD_FILE = re.compile(r"(?:^|/)reward\.(?:txt|json)$")
IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
NEWER_SYNTAX = re.compile(r"\s*(?:type\s+\w+.*=|(?:async\s+)?def\s+\w+\s*\[|class\s+\w+\s*\[)")


@dataclass(frozen=True, slots=True)
class Import:
    """An imported top-level module."""

    module: str
    line: int
    at_top: bool
    """The import runs when the file is imported; it is not inside a function."""
    caught: bool
    """A failed import is caught and handled."""


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    line: int
    message: str


@dataclass(frozen=True)
class PythonFile:
    """A Python file of the tests. `tree` is None if it does not parse with this Python."""

    file: str
    name: str
    text: str
    tree: ast.Module | None
    problem: SyntaxProblem | None

    @cached_property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """All strings except docstrings, with their lines."""
        if self.tree is None:
            return ()
        docstrings = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Expr)}
        return tuple(
            (node.value, node.lineno)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        )

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.tree.body, True, False)) if self.tree else ()

    @cached_property
    def search_path(self) -> tuple[str, ...]:
        """Literal folders that the file adds to `sys.path`."""
        found: list[str] = []
        for call in self.calls:
            if dotted(call.func) in ("sys.path.insert", "sys.path.append", "sys.path.extend"):
                found += [
                    node.value
                    for arg in call.args
                    for node in ast.walk(arg)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                ]
        return tuple(found)

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        if self.tree is None:
            return ()
        return tuple(node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    @property
    def writes_reward(self) -> bool:
        return any(REWARD_FILE.search(text) for text, _ in self.constants)

    @cached_property
    def zero_when_import_fails(self) -> bool:
        """An import is in a `try` whose handler sets or writes a zero."""
        if self.tree is None or not self.writes_reward:
            return False
        return any(
            any(isinstance(s, ast.Import | ast.ImportFrom) for b in node.body for s in ast.walk(b))
            and any(_is_zero(inner) for handler in node.handlers for inner in ast.walk(handler))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Try)
        )

    @cached_property
    def catches_all(self) -> bool:
        """An `except` block of the file sets or writes a zero."""
        if self.tree is None or not self.writes_reward:
            return False
        return any(
            any(_is_zero(inner) for inner in ast.walk(handler))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Try)
            for handler in node.handlers
        )

    def mentions(self, path: str) -> bool:
        """Whether a string of the file is this path or a path below it."""
        return any(
            text == path or text.startswith(path.rstrip("/") + "/") for text, _ in self.constants
        )


def read_python(file: str, name: str, text: str) -> PythonFile:
    """Parse a file. Syntax of a newer Python is not a problem."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PythonFile(file, name, text, ast.parse(text), None)
    except SyntaxError as error:
        lines = text.splitlines()
        line = error.lineno or 1
        written = lines[line - 1] if 0 < line <= len(lines) else ""
        newer = error.msg.startswith("f-string") or NEWER_SYNTAX.match(written) is not None
        newer = newer or "multiple exception types" in error.msg
        return PythonFile(file, name, text, None, None if newer else SyntaxProblem(line, error.msg))
    except (ValueError, RecursionError, MemoryError):
        return PythonFile(file, name, text, None, None)


def dotted(node: ast.expr) -> str:
    """Return the dotted name `a.b.c` of an expression; "" if it is not one."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def _imports(body: list[ast.stmt], at_top: bool, caught: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name.split(".")[0], node.lineno, at_top, caught)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module:
                yield Import(node.module.split(".")[0], node.lineno, at_top, caught)
        elif isinstance(node, ast.Try):
            yield from _imports(node.body, at_top, caught or _recovers(node))
            for handler in node.handlers:
                yield from _imports(handler.body, at_top, True)
            yield from _imports(node.orelse + node.finalbody, at_top, caught)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(node.body, False, caught)
        elif isinstance(node, ast.If):
            # The body of `if TYPE_CHECKING:` and similar conditions may never run.
            yield from _imports(node.body + node.orelse, False, caught)
        else:
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            yield from _imports(inner, at_top, caught)


def _recovers(node: ast.Try) -> bool:
    """Whether a handler recovers from a failed import, without exiting or writing a zero."""
    for handler in node.handlers:
        names = _names(handler.type)
        if names and not IMPORT_ERRORS.intersection(names):
            continue
        gives_up = any(
            isinstance(inner, ast.Raise)
            or (isinstance(inner, ast.Call) and dotted(inner.func).endswith("exit"))
            or _is_zero(inner)
            for inner in ast.walk(handler)
        )
        return not gives_up
    return False


def _names(node: ast.expr | None) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node is not None else set()


def _is_zero(node: ast.AST) -> bool:
    """Whether a node assigns, returns or writes the number 0 or the text "0"."""
    if isinstance(node, ast.Assign | ast.Return) and node.value is not None:
        return _contains_zero(node.value)
    if isinstance(node, ast.Call):
        name = dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if name.split(".")[-1] in ("write", "write_text", "print", "dump", "dumps"):
            return any(_contains_zero(arg) for arg in node.args)
    return False


def _contains_zero(node: ast.expr) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and not isinstance(inner.value, bool):
            value = inner.value
            if isinstance(value, int | float) and value == 0:
                return True
            if isinstance(value, str) and re.fullmatch(r"\s*0(?:\.0*)?\s*", value):
                return True
            if isinstance(value, str) and re.search(r'"reward"\s*:\s*0(?:\.0*)?\s*[,}]', value):
                return True
    return False
