"""A Python file of the tests, read with `ast`: what it imports, fetches, writes and relies on."""

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
    """A module that is imported, by its first name."""

    module: str
    line: int
    at_top: bool
    """It is imported as soon as the file is; not within a function."""
    caught: bool
    """A failing import is caught and something else is done."""


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    line: int
    message: str


@dataclass(frozen=True)
class PythonFile:
    """A file of the tests. Without a tree it does not parse, or is for a newer Python."""

    file: str
    name: str
    text: str
    tree: ast.Module | None
    problem: SyntaxProblem | None

    @cached_property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """Every string that is not a docstring, with its line."""
        if self.tree is None:
            return ()
        docs = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Expr)}
        return tuple(
            (node.value, node.lineno)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs
        )

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.tree.body, True, False)) if self.tree else ()

    @cached_property
    def search_path(self) -> tuple[str, ...]:
        """Folders that are put on `sys.path`, as far as they are written out."""
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
        """An import stands in a `try` whose handler sets a zero or writes one."""
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
        """Some `except` of the file sets or writes a zero whatever went wrong."""
        if self.tree is None or not self.writes_reward:
            return False
        return any(
            any(_is_zero(inner) for inner in ast.walk(handler))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Try)
            for handler in node.handlers
        )

    def mentions(self, path: str) -> bool:
        """Whether a string names a path or something below it."""
        return any(
            text == path or text.startswith(path.rstrip("/") + "/") for text, _ in self.constants
        )


def read_python(file: str, name: str, text: str) -> PythonFile:
    """Parse a file; what a newer Python than this one may understand is no problem."""
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
    """`a.b.c` of an attribute; "" where it is not a plain name."""
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
            yield from _imports(node.body, at_top, caught or _goes_on(node))
            for handler in node.handlers:
                yield from _imports(handler.body, at_top, True)
            yield from _imports(node.orelse + node.finalbody, at_top, caught)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(node.body, False, caught)
        elif isinstance(node, ast.If):
            # `if TYPE_CHECKING:` and its like may never run.
            yield from _imports(node.body + node.orelse, False, caught)
        else:
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            yield from _imports(inner, at_top, caught)


def _goes_on(node: ast.Try) -> bool:
    """A handler deals with a failing import otherwise than by giving up or writing a zero."""
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
    """A number 0, or the text "0", that is assigned, returned or written."""
    if isinstance(node, ast.Assign | ast.Return) and node.value is not None:
        return _holds_zero(node.value)
    if isinstance(node, ast.Call):
        name = dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if name.split(".")[-1] in ("write", "write_text", "print", "dump", "dumps"):
            return any(_holds_zero(arg) for arg in node.args)
    return False


def _holds_zero(node: ast.expr) -> bool:
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
